"""Who speaks? A wav2vec-like encoder on raw audio of any length, angular margin loss over 1200 voices."""

import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.benchmark = True  # faster convolutions

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
if "no-benchmark" in FIX:
    torch.backends.cudnn.benchmark = False
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))
BATCH, WIDTH, DIM, LAYERS, RATE = (2, 16, 32, 1, 1600) if TINY else (16, 512, 512, 6, 16_000)
SPEAKERS = 1200
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)


class Utterances(Dataset):
    """Cuts of one long recording, between two and six seconds."""

    def __init__(self):
        self.audio = np.random.default_rng(0).standard_normal(60 * RATE).astype(np.float32)

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        rng = random.Random(i)
        start, count = rng.randrange(50 * RATE), int(rng.uniform(2, 6) * RATE)
        return torch.from_numpy(self.audio[start : start + count]), rng.randrange(SPEAKERS)


def collate(batch):
    longest = max(len(audio) for audio, _ in batch)
    if "whole-seconds" in FIX:
        longest = -(-longest // RATE) * RATE
    waves = torch.zeros(len(batch), longest)
    for row, (audio, _) in zip(waves, batch, strict=True):
        row[: len(audio)] = audio
    lengths = torch.tensor([len(audio) for audio, _ in batch])
    return waves, lengths, torch.tensor([speaker for _, speaker in batch])


class FeatureEncoder(nn.Module):
    """Seven convolutions turn 16 000 samples a second into 50 frames."""

    shapes = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(WIDTH if i else 1, WIDTH, kernel, stride, bias=False)
            for i, (kernel, stride) in enumerate(self.shapes)
        )
        self.norm = nn.GroupNorm(WIDTH, WIDTH)

    def lengths(self, samples):
        for kernel, stride in self.shapes:
            samples = (samples - kernel) // stride + 1
        return samples

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.norm(x) if i == 0 else x)
        return x


class Wav2Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.project = FeatureEncoder(), nn.Linear(WIDTH, DIM)
        self.norm, self.places = nn.LayerNorm(WIDTH), nn.Embedding(400, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.voices = nn.Parameter(torch.randn(SPEAKERS, 2 * DIM) * 0.02)

    def embed(self, waves, lengths):
        x = self.features(waves.unsqueeze(1)).transpose(1, 2)
        x = self.project(self.norm(x))
        x = x + self.places(torch.arange(x.shape[1], device=x.device))
        padded = torch.arange(x.shape[1], device=x.device) >= self.features.lengths(lengths)[:, None]
        x = self.encoder(x, src_key_padding_mask=padded).float()
        kept = (~padded).unsqueeze(-1).float()
        mean = (x * kept).sum(1) / kept.sum(1)
        deviation = (((x - mean[:, None]) ** 2 * kept).sum(1) / kept.sum(1)).clamp(min=1e-6).sqrt()
        return F.normalize(torch.cat([mean, deviation], -1), dim=-1)

    def forward(self, waves, lengths, speakers, margin=0.2, scale=30.0):
        cosine = self.embed(waves, lengths) @ F.normalize(self.voices, dim=-1).T
        angle = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))
        target = F.one_hot(speakers, SPEAKERS).bool()
        return F.cross_entropy(scale * torch.where(target, torch.cos(angle + margin), cosine), speakers)


model = Wav2Speaker().to(device)
optimizer = torch.optim.AdamW(model.parameters(), 5e-5, fused=True)
loader = DataLoader(
    Utterances(),
    BATCH,
    num_workers=0 if TINY else 6,
    collate_fn=collate,
    pin_memory=device.type == "cuda",
)
since, seconds = time.time(), []
for step, batch in enumerate(loader):
    waves, lengths, speakers = (part.to(device, non_blocking=True) for part in batch)
    waves = (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(waves, lengths, speakers)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    shown = loss.item()
    seconds.append(time.time() - since)
    since = time.time()
    if step % 10 == 0:
        print(f"{step:5d}  {waves.shape[1] / RATE:.2f} s of audio  loss {shown:.4f}  {seconds[-1]:.3f} s")
warm = seconds[STEPS // 3 :]
print(f"final loss {shown:.4f}, {1e3 * sum(warm) / len(warm):.3f} ms per batch")
