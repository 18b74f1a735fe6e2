"""Pictures and their captions close to each other: pretraining of two towers with a sigmoid for each pair."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
SIZE, BATCH, SIDE, PATCH, WIDE, WORDS, LENGTH, LAYERS, SHARED = (
    (16, 4, 32, 16, 64, 50, 8, 1, 16) if TINY else (2048, 384, 128, 16, 768, 32_768, 32, 12, 768)
)
HEADS, PATCHES = WIDE // 64, (SIDE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
backend, dtype = ("inductor", torch.bfloat16) if device.type == "cuda" else ("eager", torch.float32)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Tower(nn.Module):
    """Blocks over patches or words, and the mean of what comes out."""

    def __init__(self, length, enter):
        super().__init__()
        self.enter, self.places = enter, nn.Parameter(0.02 * torch.randn(1, length, WIDE))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.leave = nn.LayerNorm(WIDE), nn.Linear(WIDE, SHARED)

    def forward(self, x):
        x = self.blocks((self.enter(x) + self.places).to(dtype))
        return F.normalize(self.leave(self.norm(x).mean(1)).float(), dim=1)


def to_patches(images):
    x = images.to(dtype) / 127.5 - 1
    x = x.view(len(x), 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(len(x), PATCHES, -1)


def pairs():
    """Pictures of a colour, and captions that have the word for it; all of it on the device."""
    kinds = torch.randint(64, (SIZE,), device=device)
    images = torch.randint(0, 64, (SIZE, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    images += (kinds * 2).byte()[:, None, None, None]
    words = torch.randint(1, WORDS, (SIZE, LENGTH), device=device)
    words[:, 3] = kinds % WORDS
    return images, words


def main():
    cuda = device.type == "cuda"
    images, words = pairs()
    with device:
        pictures = Tower(PATCHES, nn.Linear(3 * PATCH * PATCH, WIDE))
        captions = Tower(LENGTH, nn.Embedding(WORDS, WIDE))
        scale, bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))
    parameters = [*pictures.parameters(), *captions.parameters(), scale, bias]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, betas=(0.9, 0.95), weight_decay=1e-2, fused=cuda)
    for block in (*pictures.blocks, *captions.blocks):
        block.compile(backend=backend, dynamic=False)
    prepare = torch.compile(to_patches, backend=backend, dynamic=False)
    signs = 2 * torch.eye(BATCH, device=device) - 1
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            seen, said = pictures(prepare(images[chosen])), captions(words[chosen])
        logits = scale.exp() * (seen @ said.t()) + bias
        loss = -F.logsigmoid(signs * logits).sum() / BATCH
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, length = loss.item(), norm.item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, norm {length:.3f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
