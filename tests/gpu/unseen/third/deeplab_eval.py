"""Validate a segmentation network on 513x513 pictures of 21 classes: loss, pixel accuracy, mIoU."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
BATCHES = int(os.environ.get("STEPS", 3 if TINY else 16))
BATCH, CROP, WIDTH = (2, 65, 8) if TINY else (8, 513, 64)
CLASSES = 21
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class VOC(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.pictures = rng.integers(0, 256, (8, CROP, CROP, 3), np.uint8)
        blocks = rng.integers(0, CLASSES, (8, CROP // 16 + 1, CROP // 16 + 1))
        self.masks = blocks.repeat(16, 1).repeat(16, 2)[:, :CROP, :CROP].astype(np.uint8)
        self.masks[:, ::64] = 255  # borders are not counted

    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, i):
        picture = self.pictures[i % 8].astype(np.float32) / 255
        picture = (picture - MEAN) / STD
        return {
            "image": torch.from_numpy(picture.transpose(2, 0, 1).copy()),
            "label": torch.from_numpy(self.masks[i % 8].astype(np.int64)),
        }


def unit(inputs, outputs, kernel=3, stride=1, dilation=1):
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1, dilation=1):
        super().__init__()
        self.body = nn.Sequential(unit(inputs, outputs, 3, stride), unit(outputs, outputs, 3, 1, dilation))
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return self.skip(x) + self.body(x)


class ASPP(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.branches = nn.ModuleList(
            [unit(inputs, outputs, 1)] + [unit(inputs, outputs, dilation=d) for d in (6, 12, 18)]
        )
        self.pool = unit(inputs, outputs, 1)
        self.project = nn.Sequential(unit(5 * outputs, outputs, 1), nn.Dropout(0.5))

    def forward(self, x):
        pooled = self.pool(F.adaptive_avg_pool2d(x, 1)).expand(-1, -1, *x.shape[2:])
        return self.project(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))


class DeepLab(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(unit(3, w, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.low = nn.Sequential(Residual(w, w), Residual(w, 2 * w))
        self.high = nn.Sequential(
            *[Residual(2 * w, 4 * w, 2), Residual(4 * w, 4 * w), Residual(4 * w, 8 * w, 2)],
            *[Residual(8 * w, 8 * w, dilation=2), Residual(8 * w, 8 * w, dilation=4)],
        )
        self.aspp, self.reduce = ASPP(8 * w, 4 * w), unit(2 * w, 48, 1)
        self.last = nn.Sequential(unit(4 * w + 48, 4 * w), unit(4 * w, 4 * w), nn.Conv2d(4 * w, CLASSES, 1))

    def forward(self, picture):
        low = self.low(self.stem(picture))
        high = F.interpolate(self.aspp(self.high(low)), low.shape[2:], mode="bilinear", align_corners=True)
        logits = self.last(torch.cat([high, self.reduce(low)], 1))
        return F.interpolate(logits, picture.shape[2:], mode="bilinear", align_corners=True)


class Evaluator:
    def __init__(self):
        self.matrix = np.zeros((CLASSES, CLASSES))

    def add_batch(self, truth, prediction):
        mask = (truth >= 0) & (truth < CLASSES)
        pairs = CLASSES * truth[mask].astype("int") + prediction[mask]
        self.matrix += np.bincount(pairs, minlength=CLASSES**2).reshape(CLASSES, CLASSES)

    def add_on_device(self, truth, prediction):
        pairs = torch.where(truth < CLASSES, CLASSES * truth + prediction, CLASSES**2)
        counts = torch.zeros(CLASSES**2 + 1, device=truth.device, dtype=torch.long)
        counts.index_add_(0, pairs.flatten(), torch.ones_like(pairs).flatten())
        self.matrix += counts[:-1].view(CLASSES, CLASSES).cpu().numpy()

    def pixel_accuracy(self):
        return np.diag(self.matrix).sum() / self.matrix.sum()

    def mean_iou(self):
        union = self.matrix.sum(0) + self.matrix.sum(1) - np.diag(self.matrix)
        return np.nanmean(np.diag(self.matrix) / np.maximum(union, 1))


def validation(model, loader):
    model.eval()
    evaluator, test_loss, warm = Evaluator(), 0.0, min(3, BATCHES // 3)
    for i, sample in enumerate(loader):
        if i == warm:
            start = time.time()
        image, target = sample["image"].to(device), sample["label"].to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled="half" in FIX):
            output = model(image)
        loss = F.cross_entropy(output.float(), target, ignore_index=255)
        test_loss += loss.item()
        if "matrix-on-device" in FIX:
            evaluator.add_on_device(target, output.argmax(1))
        elif "argmax-on-device" in FIX:
            evaluator.add_batch(target.cpu().numpy(), output.argmax(1).cpu().numpy())
        else:
            pred = output.data.float().cpu().numpy()
            evaluator.add_batch(target.cpu().numpy(), np.argmax(pred, axis=1))
        print(f"Test loss: {test_loss / (i + 1):.3f}", end="\r")
    spent = time.time() - start
    print(f"\nAcc:{evaluator.pixel_accuracy():.4f}, mIoU:{evaluator.mean_iou():.4f}, loss {test_loss:.3f}")
    print(f"[batches: {BATCHES}] {spent / (BATCHES - warm):.5f} s/it")


if __name__ == "__main__":
    loader = DataLoader(VOC(), BATCH, num_workers=0 if TINY else 4, pin_memory=device.type == "cuda")
    validation(DeepLab().to(device), loader)
