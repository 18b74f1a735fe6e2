"""An acoustic model for speech synthesis (FastSpeech): phonemes to mel frames, durations and pitch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))
BATCH, SHORTEST, LONGEST, PHONEMES, MELS, WIDTH, HEADS, FILTER, LAYERS = (
    (2, 4, 8, 20, 8, 16, 2, 32, 1) if TINY else (32, 50, 130, 80, 80, 256, 2, 1024, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = "benchmark-off" not in FIX
torch.set_float32_matmul_precision("high")


class FFTBlock(nn.Module):
    """Self-attention, then two convolutions over time."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv1 = nn.Conv1d(WIDTH, FILTER, 9, padding=4)
        self.conv2 = nn.Conv1d(FILTER, WIDTH, 1)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, keep):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
        x = self.norm1(x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, n, WIDTH)), 0.2, self.training))
        y = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        x = self.norm2(x + F.dropout(y, 0.2, self.training))
        return x * keep[..., None]


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2, self.out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.norm1(F.relu(self.conv1(x.transpose(1, 2))).transpose(1, 2))
        x = self.norm2(F.relu(self.conv2(F.dropout(x, 0.5, self.training).transpose(1, 2))).transpose(1, 2))
        return self.out(x).squeeze(-1)


class FastSpeech(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(PHONEMES, WIDTH, padding_idx=0)
        self.register_buffer("positions", 0.1 * torch.randn(2048, WIDTH))
        self.encoder = nn.ModuleList(FFTBlock() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(FFTBlock() for _ in range(LAYERS))
        self.duration, self.pitch = Predictor(), Predictor()
        self.pitch_embed, self.mel = nn.Linear(1, WIDTH), nn.Linear(WIDTH, MELS)

    def forward(self, phonemes, durations, pitches, frames):
        keep = phonemes != 0
        x = self.embed(phonemes) + self.positions[: phonemes.size(1)]
        for block in self.encoder:
            x = block(x, keep)
        log_durations, pitch = self.duration(x), self.pitch(x)
        x = x + self.pitch_embed(pitches[..., None])
        ends = durations.cumsum(1)
        at = torch.arange(frames, device=x.device).expand(len(x), -1).contiguous()
        which = torch.searchsorted(ends, at, right=True).clamp(max=phonemes.size(1) - 1)
        keep = at < ends[:, -1:]
        x = x.gather(1, which[..., None].expand(-1, -1, WIDTH)) + self.positions[:frames]
        for block in self.decoder:
            x = block(x, keep)
        return self.mel(x), log_durations, pitch, keep


def utterance():
    n = int(torch.randint(SHORTEST, LONGEST + 1, ()))
    speed = 0.6 + 0.8 * torch.rand(())
    phonemes, durations = (
        torch.randint(1, PHONEMES, (n,)),
        (speed * torch.randint(2, 12, (n,))).round().long(),
    )
    pitches = torch.randn(n)
    tone = torch.repeat_interleave(phonemes.float() / PHONEMES + 0.2 * pitches, durations)
    return phonemes, durations, pitches, tone[:, None] + 0.1 * torch.randn(MELS)


def collate(batch):
    batch = [pad_sequence(list(one), batch_first=True) for one in zip(*batch, strict=True)]
    if "lengths-rounded" in FIX:
        *texts, mels = batch
        texts = [F.pad(one, (0, -one.size(1) % 16)) for one in texts]
        batch = [*texts, F.pad(mels, (0, 0, 0, -mels.size(1) % 128))]
    return batch


corpus = [utterance() for _ in range(64 * BATCH)]
loader = torch.utils.data.DataLoader(corpus, BATCH, shuffle=True, drop_last=True, collate_fn=collate)
model = FastSpeech().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
step, times, shown = 0, [], (0.0,) * 3
while step < STEPS:
    began = time.perf_counter()
    for phonemes, durations, pitches, mels in loader:
        if step == STEPS:
            break
        phonemes, durations, pitches, mels = (one.to(device) for one in (phonemes, durations, pitches, mels))
        out, log_durations, pitch, keep = model(phonemes, durations, pitches, mels.size(1))
        mel_loss = ((out - mels).abs().mean(-1) * keep).sum() / keep.sum()
        known = phonemes != 0
        log_target = torch.log(durations.float() + 1)
        duration_loss = ((log_durations - log_target).square() * known).sum() / known.sum()
        pitch_loss = ((pitch - pitches).square() * known).sum() / known.sum()
        optimizer.zero_grad()
        (mel_loss + duration_loss + pitch_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shown = mel_loss.item(), duration_loss.item(), pitch_loss.item()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        if step % 10 == 0:
            print(f"Step {step}: Mel {shown[0]:.4f}, Duration {shown[1]:.4f}, Pitch {shown[2]:.4f}")
        step += 1
kept = times[min(STEPS // 2, 6) :]
print(f"mel loss {shown[0]:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms/step")
