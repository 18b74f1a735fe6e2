"""What is this article called? Titles are learned by an optimizer that needs little memory."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, LENGTH, TITLE, VOCAB, WIDE, LAYERS, HEAD = (
    (8, 2, 12, 6, 60, 32, 2, 16) if TINY else (512, 16, 256, 32, 32_128, 768, 12, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))

    def forward(self, x, seen, causal=False):
        q, k, v = (
            one.unflatten(2, (-1, HEAD)).transpose(1, 2) for one in (self.q(x), self.k(seen), self.v(seen))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class TextLayer(nn.Module):
    """Of the encoder, or of the decoder, which reads the article, too."""

    def __init__(self, reads):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDE) for _ in range(3 if reads else 2))
        self.attend, self.read = Attention(), Attention() if reads else None
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x, article=None):
        y = self.norms[0](x)
        x = x + self.attend(y, y, causal=article is not None)
        if article is not None:
            x = x + self.read(self.norms[2](x), article)
        return x + self.down(F.relu(self.up(self.norms[1](x))))


class Titles(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.encoder = nn.ModuleList(TextLayer(False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(TextLayer(True) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDE) for _ in range(2))

    def forward(self, articles, titles):
        x = self.words(articles) + self.places.weight[: articles.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        article, begun = self.norms[0](x), F.pad(titles[:, :-1], (1, 0))
        x = self.words(begun) + self.places.weight[: begun.shape[1]]
        for layer in self.decoder:
            x = layer(x, article)
        logits = F.linear(self.norms[1](x), self.words.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), titles.flatten())


class Adafactor(torch.optim.Optimizer):
    """Second moments as rows and columns; steps are relative to how large weights are."""

    def __init__(self, weights, lr=1e-2, eps=(1e-30, 1e-3), clip=1.0, decay=-0.8):
        super().__init__(weights, {"lr": lr, "eps": eps, "clip": clip, "decay": decay})

    @staticmethod
    def rms(x):
        return x.norm(2) / x.numel() ** 0.5

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            tiny, least = group["eps"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                grad, state = weight.grad.float(), self.state[weight]
                if not state:
                    state["step"] = 0
                    if grad.dim() > 1:
                        state["row"], state["column"] = (
                            torch.zeros_like(grad[:, 0]),
                            torch.zeros_like(grad[0]),
                        )
                    else:
                        state["whole"] = torch.zeros_like(grad)
                state["step"] += 1
                state["rms"] = self.rms(weight)
                lr = min(group["lr"], state["step"] ** -0.5) * max(least, state["rms"])
                kept = 1.0 - state["step"] ** group["decay"]
                square = grad.square() + tiny
                if grad.dim() > 1:
                    row, column = state["row"], state["column"]
                    row.mul_(kept).add_(square.mean(1), alpha=1 - kept)
                    column.mul_(kept).add_(square.mean(0), alpha=1 - kept)
                    update = (row / row.mean()).rsqrt()[:, None] * column.rsqrt()[None] * grad
                else:
                    state["whole"].mul_(kept).add_(square, alpha=1 - kept)
                    update = state["whole"].rsqrt() * grad
                update.div_((self.rms(update) / group["clip"]).clamp_(min=1.0))
                weight.sub_(update.mul_(lr))


class AdafactorTogether(Adafactor):
    """The same, for all weights of one shape at once, which asks for nothing."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            tiny, least = group["eps"]
            shapes = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for weights in shapes.values():
                grad, state = torch.stack([one.grad for one in weights]), self.state[weights[0]]
                over, matrix = tuple(range(1, grad.dim())), grad.dim() > 2
                if not state:
                    state["step"] = 0
                    if matrix:
                        state["row"], state["column"] = (
                            torch.zeros_like(grad[..., 0]),
                            torch.zeros_like(grad[:, 0]),
                        )
                    else:
                        state["whole"] = torch.zeros_like(grad)
                state["step"] += 1
                count = weights[0].numel() ** 0.5
                large = torch.stack(torch._foreach_norm(weights)) / count
                lr = min(group["lr"], state["step"] ** -0.5) * large.clamp(min=least)
                kept = 1.0 - state["step"] ** group["decay"]
                square = grad.square().add_(tiny)
                if matrix:
                    row, column = state["row"], state["column"]
                    row.mul_(kept).add_(square.mean(2), alpha=1 - kept)
                    column.mul_(kept).add_(square.mean(1), alpha=1 - kept)
                    del square
                    update = (row / row.mean(1, keepdim=True)).rsqrt()[..., None] * column.rsqrt()[:, None]
                    update.mul_(grad)
                else:
                    state["whole"].mul_(kept).add_(square, alpha=1 - kept)
                    update = state["whole"].rsqrt() * grad
                far = torch.linalg.vector_norm(update, dim=over) / count / group["clip"]
                factor = lr / far.clamp_(min=1.0)
                update.mul_(factor.view(-1, *(1 for _ in over)))
                torch._foreach_sub_(weights, list(update.unbind()))


def main():
    articles = torch.randint(2, VOCAB, (SIZE, LENGTH), device=device)
    titles = articles[:, ::7][:, :TITLE].contiguous()
    if titles.shape[1] < TITLE:
        titles = F.pad(titles, (0, TITLE - titles.shape[1]), value=1)
    with device:
        model = Titles()
    kind = AdafactorTogether if "all-at-once" in FIX else Adafactor
    optimizer = kind(model.parameters())
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(articles[chosen], titles[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
