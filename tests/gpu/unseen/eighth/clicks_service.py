"""Cut out what is clicked at: annotators send photographs and clicks, a service answers with masks."""

import os
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 1200))  # clicks that are answered
ANNOTATORS, SIDE, PATCH, WIDTH, HEADS, LAYERS, INNER = (
    (2, 64, 16, 16, 2, 2, 8) if TINY else (4, 1024, 16, 768, 12, 12, 256)
)
PHOTOS, CLICKS, THINKING = 5, 8, 0.002
GRID = SIDE // PATCH
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, context):
        q, k, v = (
            f(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for f, y in ((self.q, x), (self.k, context), (self.v, context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(WIDTH, HEADS)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y)
        return x + self.mlp(self.norm2(x))


class ImageEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.neck = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER))

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.places
        return self.neck(self.layers(x))


class TwoWay(nn.Module):
    """Clicks look at the picture, and the picture at the clicks."""

    def __init__(self):
        super().__init__()
        self.own, self.there, self.back = (Attention(INNER, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(INNER) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(INNER, 4 * INNER), nn.ReLU(), nn.Linear(4 * INNER, INNER))

    def forward(self, tokens, picture):
        tokens = self.norms[0](tokens + self.own(tokens, tokens))
        tokens = self.norms[1](tokens + self.there(tokens, picture))
        tokens = self.norms[2](tokens + self.mlp(tokens))
        return tokens, self.norms[3](picture + self.back(picture, tokens))


class MaskDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.kinds = nn.Parameter(torch.randn(1, 1, INNER)), nn.Embedding(2, INNER)
        self.register_buffer("waves", torch.randn(2, INNER // 2))
        self.layers = nn.ModuleList(TwoWay() for _ in range(2))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(INNER, INNER // 4, 2, 2),
            nn.GELU(),
            nn.ConvTranspose2d(INNER // 4, INNER // 8, 2, 2),
            nn.GELU(),
        )
        self.to_mask = nn.Linear(INNER, INNER // 8)

    def forward(self, picture, points, labels):
        angles = 6.2832 * (2 * points - 1) @ self.waves
        tokens = torch.cat([angles.sin(), angles.cos()], 1) + self.kinds(labels)
        tokens = torch.cat([self.token, tokens[None]], 1)
        for layer in self.layers:
            tokens, picture = layer(tokens, picture)
        large = self.up(picture.transpose(1, 2).unflatten(2, (GRID, GRID)))
        mask = (self.to_mask(tokens[:, 0]) @ large.flatten(2)[0]).view(1, 1, 4 * GRID, 4 * GRID)
        return F.interpolate(mask, size=(SIDE, SIDE), mode="bilinear")[0, 0]


class Predictor:
    """What all requests share: one model on one device, hence a lock."""

    def __init__(self):
        self.encoder, self.decoder = (
            ImageEncoder().to(device, dtype).eval(),
            MaskDecoder().to(device, dtype).eval(),
        )
        self.lock, self.known = threading.Lock(), {}

    def set_image(self, image):
        pixels = torch.from_numpy(image)
        if "pinned" in FIX and device.type == "cuda":
            pixels = pixels.pin_memory()
        pixels = pixels.to(device, non_blocking=True).permute(2, 0, 1)[None].to(dtype)
        return self.encoder((pixels - 118) / 57)

    def features(self, name, image):
        if "encoded-once" not in FIX:
            return self.set_image(image)
        if name not in self.known:
            while len(self.known) >= 4 * ANNOTATORS:
                self.known.pop(next(iter(self.known)))
            self.known[name] = self.set_image(image)
        return self.known[name]

    @torch.inference_mode()
    def predict(self, name, image, points, labels):
        with self.lock:
            features = self.features(name, image)
            points = torch.tensor(points, dtype=dtype, device=device) / SIDE
            mask = self.decoder(features, points, torch.tensor(labels, device=device))
            return (mask > 0).cpu().numpy()


def annotate(number):
    """Opens one photograph after the other, and corrects each mask by a few clicks."""
    rng = np.random.default_rng(number)
    photos = [rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for _ in range(PHOTOS)]
    turn = 0
    while True:
        image, points, labels = photos[turn % PHOTOS], [], []
        for _ in range(CLICKS):
            with counting:
                if counted[0] >= STEPS:
                    return
                counted[0] += 1
            points.append(rng.integers(0, SIDE, 2).tolist())
            labels.append(int(rng.integers(0, 2)))
            asked = time.perf_counter()
            mask = predictor.predict(f"{number}/{turn % PHOTOS}", image, points, labels)
            answers.append((time.perf_counter() - asked, time.perf_counter(), float(mask.mean())))
            time.sleep(THINKING)
        turn += 1


predictor = Predictor()
for size in range(1, CLICKS + 1):
    predictor.predict("none", np.zeros((SIDE, SIDE, 3), np.uint8), [[0, 0]] * size, [1] * size)
counting, counted, answers = threading.Lock(), [0], []
began = time.perf_counter()
people = [threading.Thread(target=annotate, args=(i,)) for i in range(ANNOTATORS)]
for one in people:
    one.start()
for one in people:
    one.join()
spent = max(ended for _, ended, _ in answers) - began
waits = sorted(wait for wait, _, _ in answers)
share = sum(part for _, _, part in answers) / len(answers)
median = 1e3 * waits[len(waits) // 2]
print(f"{len(answers)} masks of {100 * share:.1f} % of a picture, median latency {median:.1f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per click")
