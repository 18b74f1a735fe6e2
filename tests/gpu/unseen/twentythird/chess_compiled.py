"""Which move did a strong player make, and who won? A transformer over the squares of a chess board."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 140))
BOARDS, BATCH, WIDE, LAYERS, HEAD = (24, 4, 32, 2, 16) if TINY else (50000, 512, 1024, 8, 64)
SQUARES, PIECES, RIGHTS, RESULTS = 64, 13, 5, 3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low, backend = (True, "inductor") if device.type == "cuda" else (False, "eager")
torch.manual_seed(0)


class Enter(nn.Module):
    """What stands on each square, and whose move it is and who may castle."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(PIECES + RIGHTS, WIDE)
        self.squares = nn.Parameter(0.02 * torch.randn(SQUARES, WIDE))
        self.register_buffer("kinds", torch.arange(PIECES))

    def forward(self, boards, rights):
        stands = (boards[:, :, None] == self.kinds).float()
        rights = rights.float()[:, None].expand(-1, SQUARES, -1)
        return self.linear(torch.cat([stands, rights], 2)) + self.squares


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Leave(nn.Module):
    """A move is a square that is left and one that is reached; the result is told from all squares."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.left, self.reached = nn.Linear(WIDE, WIDE // 4), nn.Linear(WIDE, WIDE // 4)
        self.result = nn.Linear(WIDE, RESULTS)

    def forward(self, x, moves, results):
        x = self.norm(x)
        logits = self.left(x) @ self.reached(x).transpose(1, 2) / (WIDE // 4) ** 0.5
        policy = F.cross_entropy(logits.flatten(1).float(), moves)
        return policy + 0.5 * F.cross_entropy(self.result(x.mean(1)).float(), results)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = Enter(), Leave()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, boards, rights, moves, results):
        x = self.enter(boards, rights)
        for block in self.blocks:
            x = block(x)
        return self.leave(x, moves, results)

    def compile_parts(self):
        for part in (self.enter, self.leave, *self.blocks):
            part.compile(backend=backend, dynamic=False)


def games():
    """Boards as bytes, and a move that follows from what stands where."""
    boards = torch.randint(PIECES, (BOARDS, SQUARES), device=device, dtype=torch.uint8)
    rights = torch.randint(2, (BOARDS, RIGHTS), device=device, dtype=torch.uint8)
    strength = boards.float() + torch.rand(SQUARES, device=device)
    moves = strength.argmax(1) * SQUARES + strength.argmin(1)
    return boards, rights, moves, boards.long().sum(1) % RESULTS


def main():
    data = games()
    with device:
        model = Player()
    model.compile_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=low)
    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(BOARDS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = model(*(one[chosen] for one in data))
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
