"""Write down recordings of meetings: half a minute after the other, each token the likeliest."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 48))  # pieces of half a minute
RATE, SECONDS, FFT, HOP, BANDS, WIDTH, HEADS, LAYERS, WORDS, MOST = (
    (1600, 1, 40, 16, 16, 16, 2, 2, 40, 6) if TINY else (16_000, 30, 400, 160, 80, 768, 12, 12, 51_865, 56)
)
START, LANGUAGE, TASK, END = WORDS - 1, WORDS - 2, WORDS - 3, WORDS - 4
TOGETHER = 16 if "pieces-together" in FIX else 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x):
        return x.unflatten(2, (HEADS, -1)).transpose(1, 2)

    def forward(self, x, other=None, cache=None, causal=False):
        q = self.split(self.query(x))
        if cache is None:
            k, v = self.split(self.key(x)), self.split(self.value(x))
        elif other is not None:  # of the recording: they never change
            if self not in cache:
                cache[self] = self.split(self.key(other)), self.split(self.value(other))
            k, v = cache[self]
        else:
            k, v = self.split(self.key(x)), self.split(self.value(x))
            if self in cache:
                k, v = torch.cat([cache[self][0], k], 2), torch.cat([cache[self][1], v], 2)
            cache[self] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, crossed):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.cross_norm = nn.LayerNorm(WIDTH) if crossed else None
        self.cross = Attention() if crossed else None
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, sound=None, cache=None):
        causal = self.cross is not None and x.shape[1] > 1
        x = x + self.attention(self.norm(x), cache=cache, causal=causal)
        if self.cross is not None:
            x = x + self.cross(self.cross_norm(x), sound, cache)
        return x + self.mlp(self.mlp_norm(x))


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(BANDS, WIDTH, 3, 1, 1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.sound_places = nn.Parameter(0.02 * torch.randn(RATE * SECONDS // HOP // 2, WIDTH))
        self.encoder = nn.ModuleList(Block(False) for _ in range(LAYERS))
        self.sound_norm = nn.LayerNorm(WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.05)
        self.places = nn.Parameter(0.02 * torch.randn(MOST + 8, WIDTH))
        self.decoder = nn.ModuleList(Block(True) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def hear(self, mel):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.sound_places
        for block in self.encoder:
            x = block(x)
        return self.sound_norm(x)

    def forward(self, words, sound, cache, offset):
        x = self.words(words) + self.places[offset : offset + words.shape[1]]
        for block in self.decoder:
            x = block(x, sound, cache)
        return F.linear(self.norm(x[:, -1]), self.words.weight).float()


class Mel:
    def __init__(self):
        places = torch.linspace(0, 1, FFT // 2 + 1, device=device)
        bands = torch.linspace(0, 1, BANDS, device=device)[:, None]
        self.filters = (1 - (places - bands**1.6).abs() * BANDS).clamp(min=0)
        self.window = torch.hann_window(FFT, device=device)

    def __call__(self, sound):
        power = torch.stft(sound, FFT, HOP, window=self.window, return_complex=True)[..., :-1].abs() ** 2
        found = (self.filters @ power).clamp(min=1e-10).log10()
        found = torch.maximum(found, found.amax((1, 2), keepdim=True) - 8.0)
        return ((found + 4.0) / 4.0).to(dtype)


@torch.inference_mode()
def transcribe(model, mel, pieces):
    """The tokens of some pieces, and how likely each text is on average."""
    sound = model.hear(mel(pieces))
    tokens = torch.tensor([[START, LANGUAGE, TASK]], device=device).repeat(len(pieces), 1)
    cache, offset, likely = {}, 0, torch.zeros(len(pieces), device=device)
    ended = torch.zeros(len(pieces), dtype=torch.bool, device=device)
    for place in range(MOST):
        logits = model(tokens[:, offset:], sound, cache, offset)
        logits[:, TASK : START + 1] = float("-inf")
        offset = tokens.shape[1]
        chances = logits.log_softmax(1)
        best, token = chances.max(1)
        likely += best * ~ended
        token = token.masked_fill(ended, END)
        tokens = torch.cat([tokens, token[:, None]], 1)
        ended |= token == END
        if ("end-asked-rarely" not in FIX or place % 14 == 13) and ended.all():
            break
    return tokens.tolist(), (likely / MOST).tolist()


def main():
    with device:
        model = Whisper().to(dtype).eval()
    mel, size = Mel(), RATE * SECONDS
    minutes = torch.randn(STEPS * size) * 0.1 + torch.sin(torch.arange(STEPS * size) / 40.0) * 0.1
    pieces = minutes.view(STEPS, size)
    transcribe(model, mel, pieces[:TOGETHER].to(device))
    texts, likely, began = [], [], time.perf_counter()
    for some in pieces.split(TOGETHER):
        written, chances = transcribe(model, mel, some.to(device))
        texts += written
        likely += chances
        if len(texts) % 32 == 0:
            print(f"{len(texts) * SECONDS // 60} minutes: {len(written[-1])} tokens in the last piece")
    spent = time.perf_counter() - began
    print(f"likely {sum(likely) / len(likely):.4f}; {1e3 * spent / len(texts):.3f} ms per piece")


main()
