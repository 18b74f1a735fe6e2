"""Live captions as a service: each speaker's last seconds are transcribed again with each new piece."""

import os
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 120))  # pieces of sound that are answered
SPEAKERS, SECONDS, WIDTH, HEADS, LAYERS, VOCAB = (2, 1, 16, 2, 2, 30) if TINY else (6, 30, 512, 8, 8, 1024)
RATE, FFT, HOP, MELS, PIECE, THINKING = 16_000, 400, 160, 80, 0.5, 0.003
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_num_threads(1)


def mel_filters():
    """Triangles on a scale of pitch."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rise, fall)).astype(np.float32)


FILTERS, WINDOW = mel_filters(), np.hanning(FFT + 1)[:-1].astype(np.float32)


def log_mel_spectrogram(audio):
    """A frame each ten milliseconds; numpy, so that clients need nothing else."""
    padded = np.pad(audio, FFT // 2, mode="reflect")
    count = 1 + (len(padded) - FFT) // HOP
    frames = np.lib.stride_tricks.as_strided(
        padded, (count, FFT), (HOP * padded.strides[0], padded.strides[0])
    )
    power = np.abs(np.fft.rfft(frames * WINDOW, axis=1)) ** 2
    mel = np.log10(np.maximum(FILTERS @ power.T[:, :-1], 1e-10))
    return ((np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0).astype(np.float32)


def log_mel_on_device(audio):
    wave = torch.from_numpy(audio).to(device)
    spectrum = torch.stft(wave, FFT, HOP, window=window, return_complex=True)
    mel = torch.log10((filters @ spectrum[:, :-1].abs().pow(2)).clamp(min=1e-10))
    return (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Recognizer(nn.Module):
    """Two convolutions, transformer layers, a word piece (or none) for each fourth frame."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, WIDTH, 3, 2, 1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, mel):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        return self.head(self.norm(self.layers(x)))


class Transcriber:
    """What all sessions share: a model, and a lock, for there is one device."""

    def __init__(self, model):
        self.model, self.lock = model, threading.Lock()

    @torch.inference_mode()
    def transcribe(self, audio):
        with self.lock:
            if "mel-on-device" in FIX:
                mel = log_mel_on_device(audio)
            else:
                mel = torch.from_numpy(log_mel_spectrogram(audio))
                if "pinned" in FIX and device.type == "cuda":
                    mel = mel.pin_memory()
                mel = mel.to(device, non_blocking=True)
            best = self.model(mel[None].to(dtype))[0].argmax(-1).cpu().numpy()
        changes = np.flatnonzero(np.diff(best, prepend=-1))
        return [int(piece) for piece in best[changes] if piece]


def session(number):
    """A speaker who sends half a second after the other, and waits for the captions."""
    rng = np.random.default_rng(number)
    heard = np.zeros(SECONDS * RATE, np.float32)
    while True:
        with counting:
            if counted[0] >= STEPS:
                return
            counted[0] += 1
        time_axis = np.arange(int(PIECE * RATE), dtype=np.float32) / RATE
        pitch = rng.uniform(90, 250) * rng.integers(1, 6, 4)[:, None]
        piece = 0.1 * np.sin(2 * np.pi * pitch * time_axis).sum(0) + 0.01 * rng.standard_normal(
            len(time_axis)
        )
        asked = time.perf_counter()
        heard = np.concatenate([heard[len(piece) :], piece.astype(np.float32)])
        pieces = service.transcribe(heard)
        answers.append((time.perf_counter() - asked, time.perf_counter(), len(pieces)))
        time.sleep(THINKING)


dtype = torch.float16 if device.type == "cuda" else torch.float32
window, filters = torch.from_numpy(WINDOW).to(device), torch.from_numpy(FILTERS).to(device)
service = Transcriber(Recognizer().to(device, dtype).eval())
for _ in range(3):
    service.transcribe(np.zeros(SECONDS * RATE, np.float32))
counting, counted, answers = threading.Lock(), [0], []
began = time.perf_counter()
speakers = [threading.Thread(target=session, args=(i,)) for i in range(SPEAKERS)]
for one in speakers:
    one.start()
for one in speakers:
    one.join()
spent = max(ended for _, ended, _ in answers) - began
waits = sorted(wait for wait, _, _ in answers)
words = sum(count for _, _, count in answers) / len(answers)
print(f"{len(answers)} pieces, {words:.1f} words each, median latency {1e3 * waits[len(waits) // 2]:.1f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per piece")
