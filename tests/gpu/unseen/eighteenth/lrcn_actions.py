"""What do people do in this clip? A network looks at frames, and a recurrent one at what it saw."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
CLIPS, BATCH, FRAMES, SIDE, KINDS, WIDTHS, WIDE = (
    (4, 2, 4, 32, 5, (8, 16), 16) if TINY else (48, 8, 24, 128, 101, (64, 128, 256, 512), 512)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Frozen(nn.Module):
    """Batch norm with the numbers that it had learned on photographs."""

    def __init__(self, wide):
        super().__init__()
        self.register_buffer("scale", 0.5 + torch.rand(wide, 1, 1))
        self.register_buffer("shift", 0.1 * torch.randn(wide, 1, 1))

    def forward(self, x):
        return x * self.scale.to(x.dtype) + self.shift.to(x.dtype)


class Residual(nn.Module):
    def __init__(self, enter, wide, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = Frozen(wide), Frozen(wide)
        self.skip = nn.Conv2d(enter, wide, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.skip(x) + self.norm2(self.conv2(y)))


class FrameEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, blocks, enter = nn.Conv2d(3, WIDTHS[0], 7, 2, 3), [], WIDTHS[0]
        for wide in WIDTHS:
            blocks += [Residual(enter, wide, 1 if wide == enter else 2), Residual(wide, wide, 1)]
            enter = wide
        self.blocks, self.last = nn.Sequential(*blocks), nn.Linear(enter, WIDE)

    def forward(self, x):
        x = self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
        return F.relu(self.last(x.mean((2, 3))))


class Actions(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.remember = FrameEncoder(), nn.LSTM(WIDE, WIDE, 2, batch_first=True)
        self.kinds = nn.Linear(WIDE, KINDS)

    def forward(self, clips):
        if "frames-together" in FIX:
            seen = self.look(clips.flatten(0, 1)).unflatten(0, clips.shape[:2])
        else:
            seen = torch.stack([self.look(clips[:, at]) for at in range(clips.shape[1])], 1)
        remembered, _ = self.remember(seen)
        return self.kinds(remembered[:, -1])


class Films:
    """Clips as bytes in memory; batches come from there, some mirrored."""

    def __init__(self):
        self.clips = torch.randint(0, 256, (CLIPS, FRAMES, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
        self.kinds = torch.arange(CLIPS, device=device) % KINDS
        for clip, kind in zip(self.clips, self.kinds.tolist(), strict=True):
            clip[:, kind % 3] //= 2

    def batch(self):
        chosen = torch.randint(CLIPS, (BATCH,), device=device)
        mirrored = torch.rand(BATCH, 1, 1, 1, 1, device=device) < 0.5
        clips = self.clips[chosen].float() / 127.5 - 1
        return torch.where(mirrored, clips.flip(4), clips), self.kinds[chosen]


def main():
    films = Films()
    with device:
        model = Actions()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=low)
    lead, began, shown, right = min(STEPS // 2, 5), 0.0, 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        clips, kinds = films.batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits = model(clips)
            loss = F.cross_entropy(logits, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown, right = loss.item(), (logits.argmax(1) == kinds).float().mean().item()
        if step % 20 == 0:
            print(f"step {step}: loss {shown:.4f}, right {right:.2f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
