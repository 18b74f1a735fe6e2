"""Pictures and captions, contrasted over a batch of 512 with cached gradients of their representations."""

import os
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 12))
BATCH, CHUNK, SIDE, PATCH, WIDTH, DEPTH, HEADS, CONTEXT, VOCAB = (
    (8, 4, 16, 8, 16, 2, 2, 6, 50) if TINY else (512, 16, 128, 16, 384, 12, 6, 64, 30000)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, causal):
        q, k, v = self.qkv(self.ln_1(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.ln_2(x))


class ImageTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.ln, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, pixels):
        x = (pixels.float() / 255 - 0.45) / 0.27
        x = self.conv1(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x, False)
        return self.proj(self.ln(x[:, 0]))


class TextTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(0.01 * torch.randn(1, CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.ln, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.position
        for block in self.blocks:
            x = block(x, True)
        return self.proj(self.ln(x[:, -1]))


class RandContext:
    """The state of the generators, so that the second forward pass drops what the first has dropped."""

    def __init__(self):
        self.cpu_state = torch.get_rng_state()
        self.gpu_states = [torch.cuda.get_rng_state()] if device.type == "cuda" else []

    def __enter__(self):
        self.fork = torch.random.fork_rng(devices=[0] if self.gpu_states else [], enabled=True)
        self.fork.__enter__()
        torch.set_rng_state(self.cpu_state)
        for state in self.gpu_states:
            torch.cuda.set_rng_state(state)

    def __exit__(self, *error):
        self.fork.__exit__(*error)


class GradCache:
    def __init__(self, models, chunk_size, loss_fn):
        self.models, self.chunk_size, self.loss_fn = models, chunk_size, loss_fn

    def forward_no_grad(self, model, inputs):
        states, reps = [], []
        with torch.no_grad():
            for x in inputs:
                states.append(nullcontext() if "no-generators" in FIX else RandContext())
                with torch.autocast(device.type, torch.bfloat16):
                    reps.append(model(x))
        return torch.cat([rep.float() for rep in reps]), states

    def build_cache(self, reps):
        reps = [r.detach().requires_grad_() for r in reps]
        loss = self.loss_fn(*reps)
        loss.backward()
        return [r.grad for r in reps], loss.detach()

    def forward_backward(self, model, inputs, cache, states):
        for x, state, gradient in zip(inputs, states, cache.split(self.chunk_size), strict=True):
            with state, torch.autocast(device.type, torch.bfloat16):
                y = model(x)
            surrogate = torch.dot(y.float().flatten(), gradient.flatten())
            surrogate.backward()

    def __call__(self, *model_inputs):
        chunks = [x.split(self.chunk_size) for x in model_inputs]
        reps, all_states = zip(
            *(self.forward_no_grad(m, x) for m, x in zip(self.models, chunks, strict=True)), strict=True
        )
        cache, loss = self.build_cache(reps)
        for model, x, gradient, states in zip(self.models, chunks, cache, all_states, strict=True):
            self.forward_backward(model, x, gradient, states)
        return loss


def clip_loss(image, text):
    logits = logit_scale.exp() * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
    labels = torch.arange(len(logits), device=device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def one_pass(pixels, ids):
    with torch.autocast(device.type, torch.bfloat16):
        reps = image_tower(pixels), text_tower(ids)
    loss = clip_loss(*(rep.float() for rep in reps))
    loss.backward()
    return loss.detach()


with torch.device(device):
    image_tower, text_tower = ImageTower(), TextTower()
logit_scale = nn.Parameter(torch.tensor(2.66, device=device))
parameters = [*image_tower.parameters(), *text_tower.parameters(), logit_scale]
optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.2, fused=device.type == "cuda")
train_step = one_pass if "one-pass" in FIX else GradCache((image_tower, text_tower), CHUNK, clip_loss)
pictures = torch.randint(0, 256, (4 * BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
captions = torch.randint(0, VOCAB, (4 * BATCH, CONTEXT), device=device)
times, average = [], 0.0
for step in range(STEPS):
    began = time.time()
    rows = torch.randint(0, len(pictures), (BATCH,)).to(device)
    optimizer.zero_grad()
    loss = train_step(pictures[rows], captions[rows])
    optimizer.step()
    logit_scale.data.clamp_(0, 4.6052)
    average = loss.item() if not step else 0.9 * average + 0.1 * loss.item()
    times.append(time.time() - began)
    if step % 5 == 0:
        print(
            f"Train step {step} Loss: {loss.item():.5f} ({average:.4f}) scale {logit_scale.exp().item():.3f}"
        )
kept = times[min(STEPS // 2, 3) :]
print(
    f"loss {loss.item():.5f}; {BATCH * len(kept) / sum(kept):.2f} pairs/s, {sum(kept) / len(kept):.5f} s/step"
)
