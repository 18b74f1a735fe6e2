"""Old cartoons four times as large: three threads read, enhance and write frames."""

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
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # frames
HEIGHT, WIDTH, TILE, PAD, CHANNELS, GROWTH, BLOCKS = (
    (32, 48, 16, 4, 8, 4, 1) if TINY else (256, 448, 64, 10, 64, 32, 6)
)
SCALE, SHOTS = 4, 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class ResidualDenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(CHANNELS + i * GROWTH, GROWTH if i < 4 else CHANNELS, 3, 1, 1) for i in range(5)
        )

    def forward(self, x):
        known = [x]
        for conv in self.convs[:-1]:
            known.append(F.leaky_relu(conv(torch.cat(known, 1)), 0.2, inplace=True))
        return x + 0.2 * self.convs[-1](torch.cat(known, 1))


class RRDB(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Sequential(*(ResidualDenseBlock() for _ in range(3)))

    def forward(self, x):
        return x + 0.2 * self.dense(x)


class RRDBNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body = (
            nn.Conv2d(3, CHANNELS, 3, 1, 1),
            nn.Sequential(*(RRDB() for _ in range(BLOCKS))),
        )
        self.after = nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1)
        self.ups = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1) for _ in range(2))
        self.high, self.last = nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1), nn.Conv2d(CHANNELS, 3, 3, 1, 1)
        nn.init.constant_(self.last.bias, 0.5)

    def forward(self, x):
        x = self.first(x)
        x = x + self.after(self.body(x))
        for up in self.ups:
            x = F.leaky_relu(up(F.interpolate(x, scale_factor=2, mode="nearest")), 0.2, inplace=True)
        return self.last(F.leaky_relu(self.high(x), 0.2, inplace=True))


class Upscaler:
    """Works in tiles with some surroundings, so that any frame fits into memory."""

    def __init__(self):
        self.net = RRDBNet().to(device, dtype).eval()
        self.kept = torch.empty(HEIGHT * SCALE, WIDTH * SCALE, 3, dtype=torch.uint8)
        if device.type == "cuda":
            self.kept = self.kept.pin_memory()

    @torch.inference_mode()
    def enhance(self, frame):
        x = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].to(dtype) / 255
        x = F.pad(x, (PAD, PAD, PAD, PAD), mode="reflect")
        if "tiles-together" in FIX:
            output = self.together(x)
        else:
            output = x.new_empty(1, 3, HEIGHT * SCALE, WIDTH * SCALE)
            for top in range(0, HEIGHT, TILE):
                for left in range(0, WIDTH, TILE):
                    tile = x[:, :, top : top + TILE + 2 * PAD, left : left + TILE + 2 * PAD]
                    large = self.net(tile)[:, :, PAD * SCALE : -PAD * SCALE, PAD * SCALE : -PAD * SCALE]
                    rows = slice(top * SCALE, (top + TILE) * SCALE)
                    output[:, :, rows, left * SCALE : (left + TILE) * SCALE] = large
        pixels = (output[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous()
        if "pinned-results" in FIX:
            self.kept.copy_(pixels)
            return self.kept.numpy().copy()
        return pixels.cpu().numpy()

    def together(self, x):
        tiles = x.unfold(2, TILE + 2 * PAD, TILE).unfold(3, TILE + 2 * PAD, TILE)[0]
        down, across = tiles.shape[1:3]
        large = self.net(tiles.permute(1, 2, 0, 3, 4).flatten(0, 1))
        large = large[:, :, PAD * SCALE : -PAD * SCALE, PAD * SCALE : -PAD * SCALE]
        large = large.unflatten(0, (down, across)).permute(2, 0, 3, 1, 4)
        return large.reshape(1, 3, HEIGHT * SCALE, WIDTH * SCALE)


def read(count, frames):
    """Stands in for a decoder: shots that pan over a drawing."""
    rng = np.random.default_rng(0)
    drawings = [rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for _ in range(SHOTS)]
    for number in range(count):
        frames.put(np.ascontiguousarray(np.roll(drawings[number // 10 % SHOTS], number, 1)))
    frames.put(None)


def enhance(frames, enlarged):
    while (frame := frames.get()) is not None:
        enlarged.put(upscaler.enhance(frame))
    enlarged.put(None)


def write(enlarged, written):
    """Stands in for an encoder."""
    while (frame := enlarged.get()) is not None:
        written.append((time.perf_counter(), float(frame[::16, ::16].mean())))


def convert(count):
    frames, enlarged, written = queue.Queue(4), queue.Queue(4), []
    threads = [
        threading.Thread(target=read, args=(count, frames)),
        threading.Thread(target=enhance, args=(frames, enlarged)),
        threading.Thread(target=write, args=(enlarged, written)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return written


upscaler = Upscaler()
convert(2)
began = time.perf_counter()
written = convert(STEPS)
spent = written[-1][0] - began
bright = sum(mean for _, mean in written) / len(written)
print(f"{len(written)} frames, mean brightness {bright:.4f}; {1e3 * spent / len(written):.3f} ms per frame")
