"""Words on signs, letter by letter: a convolutional and recurrent reader, batches of words of one width."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, HIGH, NARROW, BROAD, LETTERS, LENGTH, WIDE = (
    (8, 3, 32, 64, 96, 8, 4, 8) if TINY else (2048, 128, 32, 72, 720, 80, 8, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = "no-benchmark" not in FIX


def conv(enter, leave, norm=False):
    return [
        nn.Conv2d(enter, leave, 3, padding=1, bias=not norm),
        *([nn.BatchNorm2d(leave)] if norm else []),
        nn.ReLU(),
    ]


class CRNN(nn.Module):
    """Columns of a picture, looked at in both directions."""

    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            *conv(1, WIDE),
            nn.MaxPool2d(2),
            *conv(WIDE, 2 * WIDE),
            nn.MaxPool2d(2),
            *conv(2 * WIDE, 4 * WIDE, norm=True),
            *conv(4 * WIDE, 4 * WIDE),
            nn.MaxPool2d((2, 1)),
            *conv(4 * WIDE, 8 * WIDE, norm=True),
            *conv(8 * WIDE, 8 * WIDE),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(8 * WIDE, 8 * WIDE, (HIGH // 16, 1)),
            nn.ReLU(),
        )
        self.read = nn.LSTM(8 * WIDE, 4 * WIDE, 2, bidirectional=True)
        self.last = nn.Linear(8 * WIDE, LETTERS + 1)

    def forward(self, x):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            columns = self.look(x)[:, :, 0].permute(2, 0, 1)
        return self.last(self.read(columns.float())[0])


def words():
    """Pictures as broad as the broadest, in which each letter darkens its part, and their letters."""
    letters = torch.randint(1, LETTERS + 1, (SIZE, LENGTH), device=device)
    images = 0.5 * torch.randn(SIZE, 1, HIGH, BROAD, device=device)
    return images, letters


def batches(images, letters):
    """Words of a similar width together, as a sampler of buckets gives them: another width for each batch."""
    generator = torch.Generator().manual_seed(0)
    while True:
        for width in (NARROW + torch.randperm(BROAD - NARROW, generator=generator)).tolist():
            chosen = torch.randint(SIZE, (BATCH,), device=device)
            x = images[chosen, :, :, :width]
            # Letters are as broad as the picture lets them be.
            shade = F.interpolate(letters[chosen, None].float(), size=width) / LETTERS
            yield x + shade[:, :, None], letters[chosen]


def main():
    images, letters = words()
    with device:
        model = CRNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=low)
    loader = batches(images, letters)
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        x, read = next(loader)
        chances = model(x).log_softmax(2)
        loss = F.ctc_loss(chances, read, (len(chances),) * BATCH, (LENGTH,) * BATCH, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
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
