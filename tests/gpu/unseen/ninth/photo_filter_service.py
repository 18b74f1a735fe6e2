"""Is a photograph fit to be shown? Uploads wait in a queue, a worker looks at each and answers."""

import os
import queue
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 800))  # photographs that are answered
UPLOADERS, HEIGHT, WIDE, SIDE, PATCH, WIDTH, HEADS, LAYERS = (
    (2, 60, 80, 32, 16, 16, 2, 2) if TINY else (4, 1200, 1600, 224, 16, 768, 12, 12)
)
KINDS = ("drawing", "fit", "not fit", "unsure")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


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


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(KINDS)))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


class Filter:
    """A model with what comes before it: size, middle, mean and deviation."""

    def __init__(self):
        self.model = Classifier().to(device, dtype).eval()
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
        self.there = self.mean.to(device), self.std.to(device)

    def prepare(self, pixels):
        """As the model was trained: the shorter side becomes an eighth larger than what it sees."""
        mean, std = (self.mean, self.std) if pixels.device.type == "cpu" else self.there
        x = pixels.permute(2, 0, 1)[None].float() / 255.0
        factor = SIDE * 8 / 7 / min(x.shape[2:])
        size = [max(round(side * factor), SIDE) for side in x.shape[2:]]
        x = F.interpolate(x, size=size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        top, left = ((side - SIDE) // 2 for side in size)
        return (x[:, :, top : top + SIDE, left : left + SIDE] - mean) / std

    @torch.inference_mode()
    def __call__(self, photo):
        pixels = torch.from_numpy(photo)
        if "prepared-on-device" in FIX:
            x = self.prepare(pixels.to(device))
        else:
            x = self.prepare(pixels)
            if "pinned" in FIX and device.type == "cuda":
                x = x.pin_memory()
            x = x.to(device, non_blocking=True)
        likely = F.softmax(self.model(x.to(dtype)).float(), 1)[0].tolist()
        return dict(zip(KINDS, likely, strict=True))


def work():
    """The worker: whatever waits longest."""
    while (job := waiting.get()) is not None:
        photo, answer = job
        answer.put(look(photo))


def upload(number):
    """Somebody with photographs, who sends the next one when the last one is answered."""
    rng = np.random.default_rng(number)
    photos = [rng.integers(0, 256, (HEIGHT, WIDE, 3), dtype=np.uint8) for _ in range(4)]
    answer, turn = queue.Queue(), 0
    while True:
        with counting:
            if counted[0] >= STEPS:
                return
            counted[0] += 1
        asked = time.perf_counter()
        waiting.put((photos[turn % 4], answer))
        found = answer.get()
        answers.append((time.perf_counter() - asked, time.perf_counter(), found["fit"]))
        turn += 1


look = Filter()
for _ in range(3):
    look(np.zeros((HEIGHT, WIDE, 3), np.uint8))
waiting, counting, counted, answers = queue.Queue(), threading.Lock(), [0], []
began = time.perf_counter()
worker = threading.Thread(target=work)
worker.start()
people = [threading.Thread(target=upload, args=(i,)) for i in range(UPLOADERS)]
for one in people:
    one.start()
for one in people:
    one.join()
waiting.put(None)
worker.join()
spent = max(ended for _, ended, _ in answers) - began
waits = sorted(wait for wait, _, _ in answers)
fit = sum(part for _, _, part in answers) / len(answers)
median = 1e3 * waits[len(waits) // 2]
print(f"{len(answers)} photographs, fit {fit:.4f} on average, median latency {median:.1f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per photograph")
