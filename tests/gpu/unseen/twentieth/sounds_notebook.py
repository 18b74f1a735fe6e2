"""What is heard in a street? A notebook made a script: spectra of clips, a network of convolutions."""

# %%
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
CLIPS, BATCH, SAMPLES, WINDOW, HOP, BANDS, KINDS, CHANNELS = (
    (8, 4, 2048, 256, 64, 16, 3, 8) if TINY else (1024, 128, 65_536, 1024, 256, 128, 50, 64)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True

# %% Clips of noise with a tone, whose pitch says what they are.
kinds = torch.randint(KINDS, (CLIPS,), device=device)
pitch = 0.02 + 0.4 * kinds / KINDS
clips = torch.randn(CLIPS, SAMPLES, device=device)
clips += torch.sin(math.pi * pitch[:, None] * torch.arange(SAMPLES, device=device))


# %% Bands of the spectrum, each a triangle on a scale as it is heard.
def triangles():
    mel = torch.linspace(0, 2595 * math.log10(1 + 11025 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    rates = torch.linspace(0, 11025, WINDOW // 2 + 1)
    up = (rates - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - rates) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


bands, window = triangles().to(device), torch.hann_window(WINDOW, device=device)


def spectra(sounds):
    power = torch.stft(sounds, WINDOW, HOP, window=window, return_complex=True).abs().square()
    loud = torch.log(bands @ power + 1e-6)
    return ((loud - loud.mean((1, 2), keepdim=True)) / loud.std((1, 2), keepdim=True))[:, None]


# %%
class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride) if stride > 1 or enter != leave else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class SoundNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, 2, 1), nn.BatchNorm2d(CHANNELS), nn.ReLU())
        blocks, enter = [], CHANNELS
        for i, depth in enumerate((2, 2, 2, 2)):
            for j in range(depth):
                blocks.append(Residual(enter, CHANNELS << i, 2 if i and j == 0 else 1))
                enter = CHANNELS << i
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(enter, KINDS)

    def forward(self, sounds):
        x = spectra(sounds).to(memory_format=torch.channels_last)
        return self.head(self.blocks(self.enter(x)).mean((2, 3)))


with device:
    model = SoundNet().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


# %%
def loss_fn(outputs, truth):
    return F.cross_entropy(outputs.float(), truth)


def accuracy(sounds, truth, outputs):
    """The share of clips that are recognised."""
    if "outputs-once" not in FIX:
        outputs = model(sounds)
    return (outputs.argmax(1) == truth).float().mean()


# %%
lead, began, shown, right = min(STEPS // 2, 6), 0.0, 0.0, 0.0
for step in range(STEPS):
    if step == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    chosen = torch.randint(CLIPS, (BATCH,), device=device)
    sounds, truth = clips[chosen], kinds[chosen]
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        outputs = model(sounds)
        loss = loss_fn(outputs, truth)
        hits = accuracy(sounds, truth, outputs)
    loss.backward()
    optimizer.step()
    if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
        shown, right = loss.item(), hits.item()
    if step % 20 == 0:
        print(f"step {step}: loss {shown:.4f}, right {right:.3f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
print(f"loss {shown:.5f}, right {right:.4f}; {each:.3f} ms per step")
