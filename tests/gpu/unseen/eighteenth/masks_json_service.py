"""Things in a photograph, each with its outline, are asked for by several programs; the answers are JSON."""

import base64
import json
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
STEPS = int(os.environ.get("STEPS", 6 if TINY else 60))  # photographs
SIDE, WIDTHS, WIDE, FORMS, THINGS, KINDS, CLIENTS = (
    (64, (8, 8, 16, 16), 16, 4, 3, 5, 2) if TINY else (416, (64, 128, 256, 512), 256, 32, 6, 80, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Stage(nn.Sequential):
    def __init__(self, enter, wide, count):
        layers = []
        for i in range(count):
            layers += [nn.Conv2d(wide if i else enter, wide, 3, 1 if i else 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(wide), nn.SiLU(inplace=True)]
        super().__init__(*layers)


class Outlines(nn.Module):
    """Forms that belong to a photograph, and at each place a kind and how much of each form it has."""

    def __init__(self):
        super().__init__()
        self.stem = Stage(3, WIDTHS[0] // 2, 1)
        enters = (WIDTHS[0] // 2, *WIDTHS[:-1])
        self.stages = nn.ModuleList(Stage(enter, wide, 4) for enter, wide in zip(enters, WIDTHS, strict=True))
        self.sides = nn.ModuleList(nn.Conv2d(wide, WIDE, 1) for wide in WIDTHS[1:])
        self.forms = nn.Sequential(nn.Conv2d(WIDE, WIDE, 3, padding=1), nn.SiLU(), nn.Conv2d(WIDE, FORMS, 1))
        self.places = nn.Conv2d(WIDE, KINDS + FORMS, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x):
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps = [side(one) for side, one in zip(self.sides, maps[1:], strict=True)]
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], maps[i].shape[2:])
        forms = self.forms(F.interpolate(maps[0], scale_factor=2.0))
        return forms, torch.cat([self.places(one).flatten(2) for one in maps], 2)


class Segmenter:
    def __init__(self):
        with device:
            self.model = Outlines().to(dtype).to(memory_format=torch.channels_last).eval()

    @torch.inference_mode()
    def __call__(self, photo):
        pixels = torch.from_numpy(photo).to(device).permute(2, 0, 1)[None]
        forms, places = self.model((pixels.float() / 127.5 - 1).to(dtype))
        kinds, parts = places[0].float().split([KINDS, FORMS])
        best, kind = kinds.sigmoid().max(0)
        scores, at = best.topk(THINGS)
        masks = parts[:, at].T @ forms[0].float().flatten(1)
        masks = ((masks - masks.mean(1, keepdim=True)) / masks.std(1, keepdim=True)).view(
            1, THINGS, *forms.shape[2:]
        )
        masks = F.interpolate(masks, (SIDE, SIDE), mode="bilinear")[0] > 0.5
        return {"scores": scores, "kinds": kind[at], "areas": masks.sum((1, 2)), "masks": masks}

    def answer(self, photo):
        """A line of JSON for the one who asked."""
        found = self(photo)
        if "packed-masks" in FIX:
            packed = np.packbits(found.pop("masks").cpu().numpy().reshape(THINGS, -1), axis=1)
            words = {"shape": [SIDE, SIDE], "masks": [base64.b64encode(one).decode() for one in packed]}
        else:
            words = {"masks": found.pop("masks").byte().cpu().numpy().tolist()}
        if "figures-together" in FIX:
            numbers = torch.stack([one.double() for one in found.values()]).tolist()
            words |= dict(zip(found, numbers, strict=True))
        else:
            words |= {name: one.tolist() for name, one in found.items()}
        return json.dumps(words), sum(words["areas"])


def serve(segmenter, waiting):
    """The worker: what was asked first is answered first."""
    while (job := waiting.get()) is not None:
        photo, reply = job
        reply.put(segmenter.answer(photo))


def client(number, waiting, replies):
    """A program that sends a photograph, and the next when it has an answer."""
    rng, reply = np.random.default_rng(number), queue.Queue()
    small = rng.integers(0, 256, (2, SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
    photos = small.repeat(8, 1).repeat(8, 2)
    for turn in range(number, STEPS, CLIENTS):
        waiting.put((photos[turn // CLIENTS % 2], reply))
        text, area = reply.get()
        replies.append((len(text), area, time.perf_counter()))


def main():
    segmenter, waiting, replies = Segmenter(), queue.Queue(), []
    for _ in range(3):
        segmenter.answer(np.zeros((SIDE, SIDE, 3), np.uint8))
    worker = threading.Thread(target=serve, args=(segmenter, waiting))
    clients = [threading.Thread(target=client, args=(i, waiting, replies)) for i in range(CLIENTS)]
    worker.start()
    began = time.perf_counter()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    waiting.put(None)
    worker.join()
    each = 1e3 * (max(when for _, _, when in replies) - began) / len(replies)
    area = sum(area for _, area, _ in replies) / len(replies)
    print(f"{sum(size for size, _, _ in replies) / len(replies):.0f} letters in an answer")
    print(f"{len(replies)} photographs, area {area:.1f}; {each:.3f} ms per photograph")


main()
