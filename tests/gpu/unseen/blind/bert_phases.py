"""One job, four phases: pretrain a small BERT with LAMB, fine-tune it, evaluate it, export it."""

import io
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
PRETRAIN_STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
VOCAB, DIM, LAYERS, BATCH, LENGTH = (300, 32, 2, 4, 16) if TINY else (30_000, 512, 8, 64, 128)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(12)


class Lamb(torch.optim.Optimizer):
    """Large batch optimization for deep learning, https://arxiv.org/abs/1904.00962"""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (self.step_together if "foreach-lamb" in FIX else self.step_each)(group)

    def step_each(self, group):
        beta1, beta2 = group["betas"]
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
            exp_avg.mul_(beta1).add_(p.grad, alpha=1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            weight_norm = p.pow(2).sum().sqrt().clamp(0, 10)
            adam_step = exp_avg / exp_avg_sq.sqrt().add(group["eps"])
            adam_step.add_(p, alpha=group["weight_decay"])
            adam_norm = adam_step.pow(2).sum().sqrt()
            if "no-host-checks" in FIX:
                zero = (weight_norm == 0) | (adam_norm == 0)
                trust_ratio = torch.where(zero, 1.0, weight_norm / adam_norm)
                p.sub_(adam_step.mul_(trust_ratio * group["lr"]))
                continue
            trust_ratio = 1 if weight_norm == 0 or adam_norm == 0 else weight_norm / adam_norm
            p.add_(adam_step, alpha=-group["lr"] * trust_ratio)

    def step_together(self, group):
        beta1, beta2 = group["betas"]
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"] = (
                    torch.zeros_like(p),
                    torch.zeros_like(p),
                )
        grads = [p.grad for p in params]
        means, squares = ([self.state[p][key] for p in params] for key in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        steps = torch._foreach_sqrt(squares)
        torch._foreach_add_(steps, group["eps"])
        steps = torch._foreach_div(means, steps)
        torch._foreach_add_(steps, params, alpha=group["weight_decay"])
        weight_norms = torch.stack(torch._foreach_norm(params)).clamp(0, 10)
        adam_norms = torch.stack(torch._foreach_norm(steps))
        ratios = torch.where((weight_norms == 0) | (adam_norms == 0), 1.0, weight_norms / adam_norms)
        torch._foreach_mul_(steps, list((-group["lr"] * ratios).unbind()))
        torch._foreach_add_(params, steps)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM), enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids):
        return self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))


class MaskedLM(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.dense, self.bias = encoder, nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(VOCAB))

    def forward(self, ids, labels):
        x = F.gelu(self.dense(self.encoder(ids)))
        logits = F.linear(x, self.encoder.words.weight, self.bias)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


class Classifier(nn.Module):
    def __init__(self, encoder, classes=4):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(DIM, classes)

    def forward(self, ids):
        return self.head(self.encoder(ids).mean(1))


corpus = torch.randint(2, VOCAB, (40 * BATCH, LENGTH), device=device) ** 2 // VOCAB
topics = corpus[:, 0] % 4


def batch(i):
    rows = slice(i * BATCH % len(corpus), i * BATCH % len(corpus) + BATCH)
    return corpus[rows], topics[rows]


def pretrain(encoder):
    model = MaskedLM(encoder).to(device)
    optimizer = Lamb(model.parameters(), lr=2e-3)
    for step in range(PRETRAIN_STEPS):
        if step == PRETRAIN_STEPS // 4:
            start = time.time()
        ids, _ = batch(step)
        chosen = torch.rand(ids.shape, device=device) < 0.15
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = model(ids.masked_fill(chosen, 1), ids.masked_fill(~chosen, -100))
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"pretrain {step}: {loss.item():.4f}")
    loss = loss.item()
    return loss, (time.time() - start) / (PRETRAIN_STEPS - PRETRAIN_STEPS // 4)


def finetune(model):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for step in range(PRETRAIN_STEPS // 5 + 1):
        ids, labels = batch(step)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model):
    model.eval()
    return sum((model(batch(i)[0]).argmax(1) == batch(i)[1]).float().mean() for i in range(8)).item() / 8


encoder = Encoder()
loss, seconds = pretrain(encoder)
classifier = Classifier(encoder).to(device)
print(f"fine-tuned: {finetune(classifier):.4f}; accuracy {evaluate(classifier):.4f}")
exported = io.BytesIO()
torch.save({name: t.to("cpu", torch.bfloat16) for name, t in classifier.state_dict().items()}, exported)
print(f"exported {exported.tell() / 1e6:.1f} MB")
print(f"pretraining: loss {loss:.4f}, {seconds * 1e3:.4f} ms per step")
