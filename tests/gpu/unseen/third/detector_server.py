"""Find things in pictures of four cameras: a queue, a worker with a one-stage detector, NMS by class."""

import os
import queue
import threading
import time
from concurrent.futures import Future

import numpy as np
import torch
import torch.nn as nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
REQUESTS = int(os.environ.get("STEPS", 8 if TINY else 200))
CAMERAS, SIDE, WIDTH, TOP = (2, 128, 8, 20) if TINY else (4, 512, 48, 200)
CLASSES, ANCHORS, IOU = 80, (32, 64), 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
    )


class Detector(nn.Module):
    """A plain backbone of strides 8, 16 and 32; each place has two anchors with a box and 80 scores."""

    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(conv(3, w, 2), conv(w, 2 * w, 2), conv(2 * w, 2 * w), conv(2 * w, 4 * w, 2))
        self.stages = nn.ModuleList(
            nn.Sequential(conv(4 * w, 4 * w, 1 if i == 0 else 2), *[conv(4 * w, 4 * w) for _ in range(4)])
            for i in range(3)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(conv(4 * w, 4 * w), nn.Conv2d(4 * w, len(ANCHORS) * (4 + CLASSES), 1))
            for _ in range(3)
        )

    def forward(self, x):
        x, boxes, scores = self.stem(x), [], []
        for level, (stage, head) in enumerate(zip(self.stages, self.heads, strict=True)):
            x = stage(x)
            y = head(x).float()
            _, _, h, w = y.shape
            y = y.view(1, len(ANCHORS), 4 + CLASSES, h, w).permute(0, 3, 4, 1, 2)
            stride = 8 * 2**level
            rows, columns = torch.meshgrid(
                torch.arange(h, device=y.device), torch.arange(w, device=y.device), indexing="ij"
            )
            centre = (torch.stack([columns, rows], -1) + 0.5)[:, :, None] * stride
            size = torch.tensor(ANCHORS, device=y.device).view(1, 1, -1, 1) * 2.0**level
            middle = centre + y[0, ..., :2].tanh() * stride
            half = size * y[0, ..., 2:4].clamp(-1, 1).exp() / 2
            boxes.append(torch.cat([middle - half, middle + half], -1).view(-1, 4))
            scores.append(y[0, ..., 4:].sigmoid().reshape(-1, CLASSES))
        return torch.cat(boxes), torch.cat(scores)


def load_model():
    """Return the detector; without a checkpoint at hand its scores are spread as a trained one's are."""
    model = Detector().to(device)
    for head in model.heads:
        nn.init.normal_(head[-1].weight, std=0.1)
        nn.init.constant_(head[-1].bias, -3.0)
    with torch.no_grad():
        for _ in range(30):
            model(torch.rand(1, 3, SIDE, SIDE, device=device))
    return model.eval()


def overlap(box, boxes):
    """Return how much one box and each of many have in common: intersection over union."""
    corner = torch.maximum(box[..., :2], boxes[..., :2])
    opposite = torch.minimum(box[..., 2:], boxes[..., 2:])
    common = (opposite - corner).clamp(min=0).prod(-1)
    areas = [(one[..., 2:] - one[..., :2]).prod(-1) for one in (box, boxes)]
    return common / (areas[0] + areas[1] - common)


def nms(boxes, scores):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        if order.numel() == 1:
            break
        rest = order[1:]
        order = rest[overlap(boxes[best], boxes[rest]) <= IOU]
    return torch.stack(keep)


def postprocess(boxes, scores):
    """Keep the best pairs of box and class, and of those that overlap within a class the best."""
    best, flat = scores.flatten().topk(TOP)
    boxes, labels = boxes[flat // CLASSES], flat % CLASSES
    found = []
    if "matrix-nms" in FIX:
        same = (overlap(boxes[:, None], boxes[None]) > IOU) & (labels[:, None] == labels[None])
        same, boxes, best, labels = same.cpu().numpy(), boxes.tolist(), best.tolist(), labels.tolist()
        gone = np.zeros(TOP, bool)
        for i in range(TOP):
            if not gone[i]:
                gone |= same[i]
                found.append({"box": boxes[i], "score": best[i], "class": labels[i]})
        return found
    for label in range(CLASSES):
        rows = (labels == label).nonzero().flatten()
        if len(rows) == 0:
            continue
        for i in rows[nms(boxes[rows], best[rows])]:
            found.append({"box": boxes[i].tolist(), "score": best[i].item(), "class": label})
    return sorted(found, key=lambda one: -one["score"])


class Worker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.requests = queue.Queue()
        self.model = load_model()
        if "half" in FIX and device.type == "cuda":
            self.model = self.model.to(torch.bfloat16)

    @torch.inference_mode()
    def run(self):
        while True:
            frame, future = self.requests.get()
            x = torch.from_numpy(frame).to(device).permute(2, 0, 1).unsqueeze(0)
            x = (x.float() / 255).to(next(self.model.parameters()).dtype)
            future.set_result(postprocess(*self.model(x)))


class Camera(threading.Thread):
    def __init__(self, worker, seed):
        super().__init__()
        self.worker, self.found = worker, 0
        self.frames = np.random.default_rng(seed).integers(0, 256, (4, SIDE, SIDE, 3), np.uint8)

    def run(self):
        for i in range(REQUESTS // CAMERAS):
            future = Future()
            self.worker.requests.put((self.frames[i % 4], future))
            self.found += len(future.result())


def main():
    worker = Worker()
    worker.start()
    for _ in range(3):
        worker.requests.put((np.zeros((SIDE, SIDE, 3), np.uint8), first := Future()))
        first.result()
    cameras = [Camera(worker, seed) for seed in range(CAMERAS)]
    start = time.perf_counter()
    for camera in cameras:
        camera.start()
    for camera in cameras:
        camera.join()
    spent, answered = time.perf_counter() - start, REQUESTS // CAMERAS * CAMERAS
    print(f"{answered} pictures, {sum(camera.found for camera in cameras) / answered:.1f} things in each")
    print(f"{1e3 * spent / answered:.4f} ms per picture, {answered / spent:.1f} pictures per second")


if __name__ == "__main__":
    main()
