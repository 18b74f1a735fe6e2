"""A background remover as a service: clients send photographs, a worker answers with cut-out masks."""

import gc
import os
import queue
import threading
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 80))  # requests
WIDTH, SIDE, PHOTO, CLIENTS = (8, 32, (48, 64), 2) if TINY else (32, 320, (540, 720), 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def conv(a, b, dilation=1):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
    )


class RSU(nn.Module):
    """A U-shaped block of some depth within a residual connection."""

    def __init__(self, a, mid, b, depth):
        super().__init__()
        self.start, self.bottom = conv(a, b), conv(mid, mid, 2)
        self.down = nn.ModuleList(conv(b if not i else mid, mid) for i in range(depth))
        self.up = nn.ModuleList(conv(2 * mid, mid if i else b) for i in range(depth))

    def forward(self, x):
        x = self.start(x)
        h, kept = x, []
        for i, layer in enumerate(self.down):
            h = layer(h if not i else F.max_pool2d(h, 2, ceil_mode=True))
            kept.append(h)
        h = self.bottom(h)
        for layer, side in zip(reversed(self.up), reversed(kept), strict=True):
            if h.shape[-2:] != side.shape[-2:]:
                h = F.interpolate(h, size=side.shape[-2:], mode="bilinear")
            h = layer(torch.cat([h, side], 1))
        return x + h


class U2Net(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.encoder = nn.ModuleList(
            [RSU(3, w // 2, w, 5), RSU(w, w // 2, 2 * w, 4), RSU(2 * w, w, 4 * w, 3), RSU(4 * w, w, 4 * w, 2)]
        )
        self.decoder = nn.ModuleList(
            [RSU(8 * w, w, 2 * w, 3), RSU(4 * w, w // 2, w, 4), RSU(2 * w, w // 2, w, 5)]
        )
        self.side = nn.ModuleList([nn.Conv2d(c, 1, 3, padding=1) for c in (w, w, 2 * w, 4 * w)])
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        size, kept, h = x.shape[-2:], [], x
        for place, stage in enumerate(self.encoder):
            h = stage(h if not place else F.max_pool2d(h, 2, ceil_mode=True))
            kept.append(h)
        outs = [h]
        for stage, side in zip(self.decoder, reversed(kept[:-1]), strict=True):
            h = stage(torch.cat([F.interpolate(h, size=side.shape[-2:], mode="bilinear"), side], 1))
            outs.append(h)
        sides = zip(self.side, reversed(outs), strict=True)
        maps = [F.interpolate(head(one), size=size, mode="bilinear") for head, one in sides]
        return torch.sigmoid(self.out(torch.cat(maps, 1)))


class Remover:
    def __init__(self):
        self.model = U2Net().to(device).eval()
        if "half" in FIX:
            self.model = self.model.to(torch.bfloat16)

    def preprocess(self, photo):
        rows = np.linspace(0, photo.shape[0] - 1, SIDE).astype(int)
        columns = np.linspace(0, photo.shape[1] - 1, SIDE).astype(int)
        image = photo[rows][:, columns].astype(np.float32) / 255
        image = (image - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
        return torch.from_numpy(image.transpose(2, 0, 1)).unsqueeze(0).float()

    def predict(self, photo):
        with torch.no_grad():
            image = self.preprocess(photo).to(device)
            mask = self.model(image.to(torch.bfloat16) if "half" in FIX else image).float()
            mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
            mask = F.interpolate(mask, size=photo.shape[:2], mode="bilinear")
            result = (mask[0, 0] * 255).byte().cpu().numpy()
        del image, mask
        if "keep-cache" not in FIX:  # or the memory grows
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return result


class Server:
    """Requests wait in a queue for the one worker that has the model."""

    def __init__(self):
        self.remover, self.requests, self.latencies = Remover(), queue.Queue(), []
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            body, shape, answer = self.requests.get()
            try:
                photo = np.frombuffer(body, np.uint8).reshape(shape)
                answer.put(zlib.compress(self.remover.predict(photo).tobytes(), 1))
            except Exception as error:  # the client gets it
                answer.put(error)

    def handle(self, body, shape):
        begun, answer = time.perf_counter(), queue.Queue(1)
        self.requests.put((body, shape, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        self.latencies.append(time.perf_counter() - begun)
        return result


def client(number, count):
    rng = np.random.default_rng(number)
    photo = rng.integers(0, 256, (*PHOTO, 3), dtype=np.uint8)
    for _ in range(count):
        received.append(len(server.handle(photo.tobytes(), photo.shape)))


server, received = Server(), []
client(0, 3)  # to warm up
server.latencies.clear()
received.clear()
started = time.perf_counter()
threads = [threading.Thread(target=client, args=(one, STEPS // CLIENTS)) for one in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
elapsed = time.perf_counter() - started
latency = 1e3 * np.median(server.latencies)
print(f"{len(received)} answers of {np.mean(received):.0f} bytes, latency {latency:.2f} ms")
print(f"throughput {len(received) / elapsed:.3f} requests/s")
