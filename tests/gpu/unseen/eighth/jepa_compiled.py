"""I-JEPA: from what is seen of a picture, predict what an averaged encoder makes of the rest of it."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 250))
SIZE, SIDE, PATCH, WIDTH, LAYERS, HEADS, INNER, DEPTH, BATCH, BLOCKS, SPAN, SEEN = (
    (8, 32, 8, 16, 2, 2, 8, 1, 4, 2, 2, 6) if TINY else (2048, 224, 16, 768, 12, 12, 384, 6, 96, 4, 6, 80)
)
GRID = SIDE // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend = "inductor" if device.type == "cuda" else "aot_eager"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


def places(width):
    """Sines and cosines of row and column."""
    frequencies = 1 / 10_000 ** (torch.arange(width // 4) / (width // 4))
    angles = torch.arange(GRID)[:, None] * frequencies
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    rows, columns = waves[:, None].expand(-1, GRID, -1), waves[None].expand(GRID, -1, -1)
    return torch.cat([rows, columns], 2).flatten(0, 1)


def gathered(x, chosen):
    return x.gather(1, chosen[:, :, None].expand(-1, -1, x.size(2)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.register_buffer("places", places(WIDTH))
        self.blocks, self.norm = (
            nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS)),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, patches, chosen=None):
        if chosen is not None:  # what is hidden need not be embedded
            x = self.patches(gathered(patches, chosen)) + self.places[chosen]
        else:
            x = self.patches(patches) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Predictor(nn.Module):
    """For each hidden block: tokens of what is seen, and a mask token for each place in the block."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave, self.norm = (
            nn.Linear(WIDTH, INNER),
            nn.Linear(INNER, WIDTH),
            nn.LayerNorm(INNER),
        )
        self.token = nn.Parameter(torch.zeros(1, 1, INNER))
        self.register_buffer("places", places(INNER))
        self.blocks = nn.ModuleList(Block(INNER, HEADS) for _ in range(DEPTH))

    def forward(self, x, seen, hidden):
        x = (self.enter(x) + self.places[seen]).repeat_interleave(BLOCKS, 0)
        asked = self.token + self.places[hidden.flatten(0, 1)]
        x = torch.cat([x, asked], 1)
        for block in self.blocks:
            x = block(x)
        return self.leave(self.norm(x[:, -hidden.size(2) :]))


class Masks:
    """Four blocks that are hidden, and some of the places that are in none of them: always as many."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        inner = torch.arange(SPAN)
        self.inner = (inner[:, None] * GRID + inner).flatten()

    def draw(self):
        corners = torch.randint(GRID - SPAN + 1, (2, BATCH, BLOCKS), generator=self.generator)
        hidden = (corners[0] * GRID + corners[1])[:, :, None] + self.inner
        chance = torch.rand(BATCH, GRID * GRID, generator=self.generator)
        chance.scatter_(1, hidden.flatten(1), chance.gather(1, hidden.flatten(1)) - 1)
        return chance.topk(SEEN, 1).indices.sort(1).values, hidden

    def batch(self):
        if "masks-kept" in FIX:
            if not hasattr(self, "kept"):
                self.kept, self.turn = [[m.to(device) for m in self.draw()] for _ in range(STEPS)], -1
            self.turn += 1
            return self.kept[self.turn]
        drawn = self.draw()
        if device.type == "cuda":
            drawn = [mask.pin_memory() for mask in drawn]
        return [mask.to(device, non_blocking=True) for mask in drawn]


def to_patches(images):
    """Bytes to normalised patches, mirrored or not."""
    x = images.to(torch.bfloat16 if device.type == "cuda" else torch.float32) / 127.5 - 1
    x = x.view(len(x), 3, GRID, PATCH, GRID, PATCH).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(len(x), GRID * GRID, -1)


def main():
    cuda = device.type == "cuda"
    images = torch.randint(0, 256, (SIZE, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    images[:, :, ::2] = images[:, :, ::2] // 2
    encoder, predictor = Encoder().to(device), Predictor().to(device)
    teacher = copy.deepcopy(encoder).requires_grad_(False)
    parameters = [*encoder.parameters(), *predictor.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.04, fused=cuda)
    own, theirs = list(encoder.parameters()), list(teacher.parameters())
    for block in (*encoder.blocks, *teacher.blocks, *predictor.blocks):
        block.compile(backend=backend, dynamic=False)
    prepare, masks = torch.compile(to_patches, backend=backend), Masks()
    times, shown = [], 0.0
    for step in range(STEPS):
        began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        seen, hidden = masks.batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            patches = prepare(images[chosen])
            with torch.no_grad():
                wanted = F.layer_norm(teacher(patches).float(), (WIDTH,))
                wanted = gathered(wanted, hidden.flatten(1)).view(BATCH * BLOCKS, SPAN * SPAN, WIDTH)
            predicted = predictor(encoder(patches, seen), seen, hidden)
        loss = F.smooth_l1_loss(predicted.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(theirs, own, 1 - (0.996 + 0.004 * step / max(STEPS, 1000)))
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}")
    kept = times[min(STEPS // 2, 8) :]
    print(f"loss {shown:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")


main()
