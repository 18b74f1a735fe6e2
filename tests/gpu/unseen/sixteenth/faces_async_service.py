"""Who is it? Faces come in from cameras, and are looked for among all who are known."""

import asyncio
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 10 if TINY else 80))  # faces that are answered
KNOWN, SIDE, WIDE, BLOCKS, CODE, CAMERAS, NEAR = (
    (50, 32, 8, (1, 1, 1, 1), 16, 2, 3) if TINY else (60_000, 112, 64, (3, 4, 14, 3), 512, 4, 3)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, wide, out, stride):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm2d(wide), nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(wide, out, 3, 1, 1, bias=False)
        self.conv2, self.prelu = nn.Conv2d(out, out, 3, stride, 1, bias=False), nn.PReLU(out)
        self.shortcut = nn.Conv2d(wide, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.conv2(self.prelu(self.norm2(self.conv1(self.norm1(x)))))
        return self.norm3(y) + self.shortcut(x)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, wide = [nn.Conv2d(3, WIDE, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDE), nn.PReLU(WIDE)], WIDE
        for i, count in enumerate(BLOCKS):
            for j in range(count):
                layers.append(Block(wide, WIDE << i, 1 if j else 2))
                wide = WIDE << i
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(wide * (SIDE // 16) ** 2, CODE)

    def forward(self, x):
        return F.normalize(self.last(self.layers(x).flatten(1)).float(), dim=1)


class Recognizer:
    """A network, and the codes of all who are known, a row for each."""

    def __init__(self):
        with device:
            self.model = Embedder().eval().to(dtype)
        rng = np.random.default_rng(0)
        codes = rng.standard_normal((KNOWN, CODE), dtype=np.float32)
        self.codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        self.names = [f"person {i}" for i in range(KNOWN)]
        if "known-on-device" in FIX:
            self.there = torch.from_numpy(self.codes).to(device)

    @torch.inference_mode()
    def code(self, face):
        x = torch.from_numpy(face).to(device).permute(2, 0, 1)[None]
        return self.model((x.to(dtype) - 127.5) / 128)

    @torch.inference_mode()
    def nearest(self, face):
        code = self.code(face)
        if "known-on-device" in FIX:
            distances, order = (self.there - code).norm(dim=1).topk(NEAR, largest=False)
            return [(self.names[i], d) for i, d in zip(order.tolist(), distances.tolist(), strict=True)]
        distances = np.linalg.norm(self.codes - code.cpu().numpy(), axis=1)
        if "not-sorted" in FIX:
            order = np.argpartition(distances, NEAR)[:NEAR]
            order = order[np.argsort(distances[order])]
        else:
            order = np.argsort(distances)[:NEAR]
        return [(self.names[i], float(distances[i])) for i in order]


async def look(recognizer, waiting):
    """Whatever waits longest; a result of None ends it."""
    while (job := await waiting.get()) is not None:
        face, answer = job
        answer.set_result(recognizer.nearest(face))


async def camera(number, waiting, left, answers):
    """Sends the next face when the last one is known."""
    rng = np.random.default_rng(number)
    faces = rng.integers(0, 256, (8, SIDE, SIDE, 3), dtype=np.uint8)
    turn = 0
    while left[0] > 0:
        left[0] -= 1
        answer, asked = asyncio.get_running_loop().create_future(), time.perf_counter()
        await waiting.put((faces[turn % 8], answer))
        found = await answer
        answers.append((time.perf_counter() - asked, found[0][1]))
        turn += 1


async def main():
    recognizer, waiting, answers = Recognizer(), asyncio.Queue(), []
    for _ in range(3):
        recognizer.code(np.zeros((SIDE, SIDE, 3), np.uint8)).cpu()
    worker, left = asyncio.create_task(look(recognizer, waiting)), [STEPS]
    began = time.perf_counter()
    await asyncio.gather(*(camera(i, waiting, left, answers) for i in range(CAMERAS)))
    spent = time.perf_counter() - began
    await waiting.put(None)
    await worker
    waits, distance = sorted(wait for wait, _ in answers), sum(near for _, near in answers) / len(answers)
    median = 1e3 * waits[len(waits) // 2]
    print(f"{len(answers)} faces, distance {distance:.4f} on average, median latency {median:.1f} ms")
    print(f"{1e3 * spent / len(answers):.4f} ms per face")


asyncio.run(main())
