"""Posters from a line of text in a few steps: a text encoder, a transformer that denoises, and a decoder."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 40))  # posters
CLIENTS, WORDS, VOCAB, TEXT, TEXT_LAYERS, WIDE, LAYERS, HEAD, SIDE, LATENT, DENOISE, DECODED = (
    (2, 6, 50, 32, 1, 32, 1, 16, 8, 4, 2, 8)
    if TINY
    else (3, 64, 32_000, 768, 8, 1024, 10, 64, 64, 16, 4, 128)
)
THINKING = 0.001
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    """Attention and two layers; scaled and shifted by what is told."""

    def __init__(self, width, told=0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.change = nn.Linear(told, 2 * width) if told else None

    def forward(self, x, told=None):
        y = self.norm1(x)
        if told is not None:
            scale, shift = self.change(told)[:, None].chunk(2, -1)
            y = y * (1 + scale) + shift
        q, k, v = self.qkv(y).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, TEXT), nn.Parameter(0.02 * torch.randn(WORDS, TEXT))
        self.blocks = nn.Sequential(*(Block(TEXT) for _ in range(TEXT_LAYERS)))
        self.norm = nn.LayerNorm(TEXT)

    def forward(self, words):
        return self.norm(self.blocks(self.words(words) + self.places))


class Transformer(nn.Module):
    """What is noise in the latents, seen with the words by their side."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4 * LATENT, WIDE), nn.Linear(WIDE, 4 * LATENT)
        self.text, self.time = nn.Linear(TEXT, WIDE), nn.Linear(1, WIDE)
        self.places = nn.Parameter(0.02 * torch.randn((SIDE // 2) ** 2, WIDE))
        self.blocks = nn.ModuleList(Block(WIDE, WIDE) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDE)

    def forward(self, latents, t, text):
        x = F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)
        told = F.silu(self.time(t) + self.text(text.mean(1)))
        x = torch.cat([self.text(text), self.enter(x) + self.places], 1)
        for block in self.blocks:
            x = block(x, told)
        x = self.leave(self.norm(x[:, WORDS:])).transpose(1, 2).unflatten(2, (SIDE // 2, -1))
        return F.pixel_shuffle(x, 2)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(LATENT, 2 * DECODED, 3, padding=1)
        self.ups = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1)
            for a, b in ((2 * DECODED, 2 * DECODED), (2 * DECODED, DECODED), (DECODED, DECODED // 2))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, conv.out_channels) for conv in self.ups)
        self.last = nn.Conv2d(DECODED // 2, 3, 3, padding=1)

    def forward(self, latents):
        x = self.first(latents)
        for conv, norm in zip(self.ups, self.norms, strict=True):
            x = F.silu(norm(conv(F.interpolate(x, scale_factor=2))))
        return self.last(x)


class Pipeline:
    """Only the part that works is on the device, so that small cards suffice."""

    def __init__(self):
        with device:
            parts = [TextEncoder(), Transformer(), Decoder()]
        kept = device if "resident" in FIX else torch.device("cpu")
        self.text_encoder, self.transformer, self.decoder = (
            part.to(dtype).eval().requires_grad_(False).to(kept) for part in parts
        )
        self.pixels = torch.empty(SIDE * 8, SIDE * 8, 3, dtype=torch.uint8)
        if device.type == "cuda":
            self.pixels = self.pixels.pin_memory()

    @contextlib.contextmanager
    def onloaded(self, part):
        if "resident" in FIX:
            yield part
            return
        part.to(device)
        yield part
        part.to("cpu")

    @torch.no_grad()
    def __call__(self, words):
        with self.onloaded(self.text_encoder) as encode:
            text = encode(words.to(device)[None])
        latents = torch.randn(1, LATENT, SIDE, SIDE, device=device, dtype=dtype)
        with self.onloaded(self.transformer) as predict:
            for i in range(DENOISE):
                t = torch.full((1, 1), 1 - i / DENOISE, device=device, dtype=dtype)
                latents = latents - predict(latents, t, text) / DENOISE
        with self.onloaded(self.decoder) as decode:
            picture = decode(latents)[0]
        pixels = ((picture.float().clamp(-1, 1) + 1) * 127.5).byte().permute(1, 2, 0).contiguous()
        if "pinned-results" in FIX:
            self.pixels.copy_(pixels)
            return self.pixels.clone()
        return pixels.cpu()


def work(number):
    """Somebody who asks for a poster, looks at it, and asks for another."""
    generator = torch.Generator().manual_seed(number)
    while True:
        with counting:
            if counted[0] >= STEPS:
                return
            counted[0] += 1
        words = torch.randint(VOCAB, (WORDS,), generator=generator)
        asked = time.perf_counter()
        poster = painter.submit(pipeline, words).result()
        done.append((time.perf_counter(), time.perf_counter() - asked, float(poster[::8].float().mean())))
        time.sleep(THINKING)


pipeline = Pipeline()
painter = ThreadPoolExecutor(1)
painter.submit(pipeline, torch.arange(WORDS) % VOCAB).result()
counting, counted, done = threading.Lock(), [0], []
began = time.perf_counter()
clients = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
for one in clients:
    one.start()
for one in clients:
    one.join()
painter.shutdown()
spent, waits = max(ended for ended, _, _ in done) - began, sorted(wait for _, wait, _ in done)
bright = sum(mean for _, _, mean in done) / len(done)
print(f"{len(done)} posters, brightness {bright:.3f}, median latency {1e3 * waits[len(waits) // 2]:.1f} ms")
print(f"{1e3 * spent / len(done):.3f} ms per poster")
