"""Read texts aloud in the voice of a recording: a service with some voices, one request after the other."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))  # requests
RECORDED, RATE, SECONDS, FFT, HOP, BANDS, WIDTH, HEADS, LAYERS, SPOKEN, FRAMES, WIDE, UPS = (
    (2400, 1600, 1, 40, 16, 8, 16, 2, 1, 6, 3, 16, (4, 4))
    if TINY
    else (44_100, 22_050, 12, 1024, 256, 80, 512, 8, 6, 90, 6, 512, (8, 8, 4))
)
PHONES, VOICES = 70, ("ann", "ben", "cleo", "dan")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SpeakerEncoder(nn.Module):
    """What a voice is like: a vector for a recording."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(BANDS, WIDTH, 5, 2, 2)
        self.layers, self.out = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.Linear(WIDTH, WIDTH)

    def forward(self, mel):
        x = self.layers(F.gelu(self.first(mel)).transpose(1, 2))
        return F.normalize(self.out(x.mean(1)), dim=1)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.phones, self.voice = nn.Embedding(PHONES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.encoder, self.decoder = (nn.Sequential(*(Layer() for _ in range(LAYERS))) for _ in range(2))
        self.out = nn.Linear(WIDTH, BANDS)

    def forward(self, phones, voice):
        x = self.encoder(self.phones(phones) + self.voice(voice)[:, None])
        return self.out(self.decoder(x.repeat_interleave(FRAMES, 1))).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self, wide, size):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(wide, wide, size, padding=size // 2 * gap, dilation=gap) for gap in (1, 3, 5)
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, wide = nn.Conv1d(BANDS, WIDE, 7, padding=3), WIDE
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for up in UPS:
            self.ups.append(nn.ConvTranspose1d(wide, wide // 2, 2 * up, up, up // 2))
            wide //= 2
            self.blocks.append(nn.ModuleList(Residual(wide, size) for size in (3, 7, 11)))
        self.last = nn.Conv1d(wide, 1, 7, padding=3)

    def forward(self, mel):
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return self.last(F.leaky_relu(x)).tanh()[:, 0]


class Synthesizer:
    def __init__(self, folder):
        self.folder, self.latents = folder, {}
        parts = SpeakerEncoder(), Acoustic(), Vocoder()
        self.encoder, self.acoustic, self.vocoder = (part.to(device, dtype).eval() for part in parts)
        places, bands = torch.linspace(0, 1, FFT // 2 + 1), torch.linspace(0, 1, BANDS)[:, None]
        self.filters = (1 - (places - bands**1.6).abs() * BANDS).clamp(min=0)
        self.window = torch.hann_window(FFT)

    def load(self, name):
        """A recording at the rate of the model: as its file says, made mono, trimmed, resampled."""
        sound = np.load(self.folder / f"{name}.npy").astype(np.float32).mean(1) / 32768.0
        loud = np.flatnonzero(np.abs(sound) > 0.01)
        sound = sound[loud[0] : loud[-1] + 1]
        times = np.arange(int(len(sound) * RATE / RECORDED)) * (RECORDED / RATE)
        smooth = np.convolve(sound, np.hanning(9).astype(np.float32) / 4.0, "same")
        return np.interp(times, np.arange(len(sound)), smooth).astype(np.float32)

    def conditioning(self, name):
        sound = torch.from_numpy(self.load(name))
        power = torch.stft(sound, FFT, HOP, window=self.window, return_complex=True).abs() ** 2
        mel = (self.filters @ power).clamp(min=1e-5).log()
        return self.encoder(mel[None].to(device, dtype))

    @torch.inference_mode()
    def speak(self, text, name):
        if "voices-kept" in FIX:
            if name not in self.latents:
                self.latents[name] = self.conditioning(name)
            voice = self.latents[name]
        else:
            voice = self.conditioning(name)
        phones = torch.tensor([[hash_of(one) for one in text]], device=device)
        sound = self.vocoder(self.acoustic(phones, voice))[0]
        if "bytes-on-device" in FIX:
            return (sound.float() * 32767).clamp(-32768, 32767).to(torch.int16).cpu().numpy()
        return np.clip(sound.float().cpu().numpy() * 32767, -32768, 32767).astype(np.int16)


def hash_of(letter):
    return ord(letter) % PHONES


def main():
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for name in VOICES:
            pitch = rng.uniform(90, 240) * 2 * np.pi / RECORDED
            voiced = np.sin(pitch * np.arange(RECORDED * SECONDS))[:, None] * 9000
            noise = rng.normal(0, 900, (RECORDED * SECONDS, 2))
            np.save(Path(folder, f"{name}.npy"), (voiced + noise).astype(np.int16))
        service = Synthesizer(Path(folder))
        letters = list("abcdefghijklmnopqrstuvwxyz ,.")
        texts = ["".join(rng.choice(letters, SPOKEN)) for _ in range(16)]
        for name in VOICES:
            service.speak(texts[0], name)
        waits, loud = [], []
        for request in range(STEPS):
            began = time.perf_counter()
            sound = service.speak(texts[request % 16], VOICES[rng.integers(len(VOICES))])
            waits.append(time.perf_counter() - began)
            loud.append(float(np.abs(sound.astype(np.float32)).mean()))
    median = 1e3 * sorted(waits)[len(waits) // 2]
    print(f"{len(waits)} requests, {sound.size / RATE:.2f} s of sound in the last, median {median:.1f} ms")
    print(f"loud {np.mean(loud):.4f}; {1e3 * np.mean(waits):.3f} ms per request")


main()
