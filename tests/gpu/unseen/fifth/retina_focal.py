"""RetinaNet on photographs of 512 pixels: anchors, a match for each picture, focal loss."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 30))
BATCH, SIDE, CLASSES, WIDTH, FPN, BLOCKS = (
    (2, 64, 5, 4, 8, (1, 1, 1, 1)) if TINY else (8, 512, 80, 64, 256, (3, 4, 6, 3))
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Bottleneck(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv3, self.bn3 = nn.Conv2d(b, 4 * b, 1, bias=False), nn.BatchNorm2d(4 * b)
        self.down = None
        if stride != 1 or a != 4 * b:
            self.down = nn.Sequential(nn.Conv2d(a, 4 * b, 1, stride, bias=False), nn.BatchNorm2d(4 * b))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        return F.relu(self.bn3(self.conv3(out)) + (x if self.down is None else self.down(x)), inplace=True)


class PyramidFeatures(nn.Module):
    def __init__(self, c3, c4, c5):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, FPN, 1) for c in (c3, c4, c5))
        self.smooth = nn.ModuleList(nn.Conv2d(FPN, FPN, 3, padding=1) for _ in range(3))
        self.p6, self.p7 = nn.Conv2d(c5, FPN, 3, 2, 1), nn.Conv2d(FPN, FPN, 3, 2, 1)

    def forward(self, c3, c4, c5):
        p5 = self.lateral[2](c5)
        p4 = self.lateral[1](c4) + F.interpolate(p5, scale_factor=2)
        p3 = self.lateral[0](c3) + F.interpolate(p4, scale_factor=2)
        p6 = self.p6(c5)
        smooth = [layer(p) for layer, p in zip(self.smooth, (p3, p4, p5), strict=True)]
        return [*smooth, p6, self.p7(F.relu(p6))]


def head(outputs):
    layers = []
    for _ in range(4):
        layers += [nn.Conv2d(FPN, FPN, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(FPN, 9 * outputs, 3, padding=1))


class Anchors:
    """Nine boxes around each place of each level."""

    def __init__(self):
        self.kept = None

    def __call__(self, side):
        if "anchors-once" in FIX and self.kept is not None:
            return self.kept
        all_anchors = np.zeros((0, 4)).astype(np.float32)
        for level in range(3, 8):
            stride, size = 2**level, 2 ** (level + 2)
            scales = np.tile(size * np.array([1, 2 ** (1 / 3), 2 ** (2 / 3)]), 3)
            ratios = np.repeat(np.array([0.5, 1, 2]), 3)
            w, h = scales / np.sqrt(ratios), scales * np.sqrt(ratios)
            base = np.stack([-w / 2, -h / 2, w / 2, h / 2], 1)
            places = (np.arange((side + stride - 1) // stride) + 0.5) * stride
            x, y = np.meshgrid(places, places)
            shifts = np.stack([x.ravel(), y.ravel(), x.ravel(), y.ravel()], 1)
            boxes = (shifts[:, None] + base[None]).reshape(-1, 4)
            all_anchors = np.append(all_anchors, boxes, axis=0)
        self.kept = torch.from_numpy(np.expand_dims(all_anchors, 0).astype(np.float32)).to(device)
        return self.kept


def calc_iou(a, b):
    area = (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])
    iw = torch.min(a[:, None, 2], b[..., None, :, 2]) - torch.max(a[:, None, 0], b[..., None, :, 0])
    ih = torch.min(a[:, None, 3], b[..., None, :, 3]) - torch.max(a[:, None, 1], b[..., None, :, 1])
    iw, ih = iw.clamp(min=0), ih.clamp(min=0)
    union = ((a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1]))[:, None] + area[..., None, :] - iw * ih
    return iw * ih / union.clamp(min=1e-8)


def box_targets(anchor, assigned):
    w, h = anchor[..., 2] - anchor[..., 0], anchor[..., 3] - anchor[..., 1]
    x, y = anchor[..., 0] + 0.5 * w, anchor[..., 1] + 0.5 * h
    gw, gh = assigned[..., 2] - assigned[..., 0], assigned[..., 3] - assigned[..., 1]
    gx, gy = assigned[..., 0] + 0.5 * gw, assigned[..., 1] + 0.5 * gh
    gw, gh = gw.clamp(min=1), gh.clamp(min=1)
    targets = torch.stack([(gx - x) / w, (gy - y) / h, torch.log(gw / w), torch.log(gh / h)], -1)
    return targets / targets.new_tensor([0.1, 0.1, 0.2, 0.2])


class FocalLoss(nn.Module):
    def forward(self, classifications, regressions, anchors, annotations, alpha=0.25, gamma=2.0):
        classification_losses, regression_losses = [], []
        anchor = anchors[0]
        for j in range(classifications.shape[0]):
            classification, regression = classifications[j], regressions[j]
            bbox_annotation = annotations[j]
            bbox_annotation = bbox_annotation[bbox_annotation[:, 4] != -1]
            classification = torch.clamp(classification, 1e-4, 1.0 - 1e-4)
            iou_max, iou_argmax = torch.max(calc_iou(anchor, bbox_annotation[:, :4]), dim=1)
            targets = torch.ones(classification.shape).to(device) * -1
            targets[torch.lt(iou_max, 0.4), :] = 0
            positive_indices = torch.ge(iou_max, 0.5)
            num_positive_anchors = positive_indices.sum()
            assigned = bbox_annotation[iou_argmax, :]
            targets[positive_indices, :] = 0
            targets[positive_indices, assigned[positive_indices, 4].long()] = 1
            alpha_factor = torch.ones(targets.shape).to(device) * alpha
            alpha_factor = torch.where(torch.eq(targets, 1.0), alpha_factor, 1.0 - alpha_factor)
            weight = torch.where(torch.eq(targets, 1.0), 1.0 - classification, classification)
            weight = alpha_factor * torch.pow(weight, gamma)
            bce = -(targets * torch.log(classification) + (1.0 - targets) * torch.log(1.0 - classification))
            cls_loss = weight * bce
            cls_loss = torch.where(torch.ne(targets, -1.0), cls_loss, torch.zeros(cls_loss.shape).to(device))
            classification_losses.append(cls_loss.sum() / num_positive_anchors.float().clamp(min=1.0))
            if positive_indices.sum() > 0:
                wanted = box_targets(anchor[positive_indices], assigned[positive_indices])
                diff = torch.abs(wanted - regression[positive_indices, :])
                loss = torch.where(torch.le(diff, 1 / 9), 0.5 * 9.0 * diff**2, diff - 0.5 / 9.0)
                regression_losses.append(loss.mean())
            else:
                regression_losses.append(torch.tensor(0).float().to(device))
        return torch.stack(classification_losses).mean(), torch.stack(regression_losses).mean()


class BatchedFocalLoss(nn.Module):
    """The same for all pictures at once: masks as factors, nothing is picked."""

    def forward(self, classifications, regressions, anchors, annotations, alpha=0.25, gamma=2.0):
        p, anchor = torch.clamp(classifications, 1e-4, 1.0 - 1e-4), anchors[0]
        iou = calc_iou(anchor, annotations[..., :4])
        iou = iou.masked_fill((annotations[..., 4] == -1)[:, None], -1)
        iou_max, iou_argmax = iou.max(-1)
        positive, ignored = iou_max >= 0.5, (iou_max >= 0.4) & (iou_max < 0.5)
        assigned = annotations.gather(1, iou_argmax[..., None].expand(-1, -1, 5))
        count = positive.sum(1).float().clamp(min=1.0)
        classes = torch.arange(p.shape[-1], device=device)
        hit = positive[..., None] & (assigned[..., 4:] == classes)
        right = torch.where(hit, p, 1 - p)
        cls_loss = -torch.where(hit, alpha, 1 - alpha) * (1 - right) ** gamma * torch.log(right)
        cls_loss = cls_loss.masked_fill(ignored[..., None], 0).sum((1, 2)) / count
        diff = torch.abs(box_targets(anchor, assigned) - regressions)
        loss = torch.where(diff <= 1 / 9, 0.5 * 9.0 * diff**2, diff - 0.5 / 9.0)
        box_loss = torch.where(positive[..., None], loss, 0).sum((1, 2)) / (4 * count)
        return cls_loss.mean(), box_loss.mean()


class RetinaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        inputs, stages = WIDTH, []
        for i, count in enumerate(BLOCKS):
            width, layers = WIDTH * 2**i, []
            for k in range(count):
                layers.append(Bottleneck(inputs, width, 2 if i and not k else 1))
                inputs = 4 * width
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)
        self.fpn = PyramidFeatures(8 * WIDTH, 16 * WIDTH, 32 * WIDTH)
        self.regression, self.classification = head(4), head(CLASSES)
        nn.init.constant_(self.classification[-1].bias, -4.6)
        self.anchors = Anchors()
        self.loss = BatchedFocalLoss() if "loss-at-once" in FIX else FocalLoss()
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()  # as in the published recipe

    def forward(self, images, annotations):
        x, kept = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)

        def flat(out, size):
            return out.permute(0, 2, 3, 1).reshape(len(images), -1, size)

        features = self.fpn(*kept[1:])
        regression = torch.cat([flat(self.regression(f), 4) for f in features], 1)
        classification = torch.cat([flat(self.classification(f).sigmoid(), CLASSES) for f in features], 1)
        return self.loss(classification, regression, self.anchors(images.shape[-1]), annotations)


def annotate():
    """Up to a dozen boxes for each picture, padded with -1."""
    out = np.full((BATCH, 12, 5), -1, np.float32)
    for one in out:
        for row in one[: rng.integers(1, 13)]:
            size = rng.uniform(0.1, 0.5, 2) * SIDE
            corner = rng.uniform(0, SIDE - size)
            row[:] = *corner, *(corner + size), rng.integers(0, CLASSES)
    return torch.from_numpy(out)


retinanet = RetinaNet().to(device)
optimizer = torch.optim.Adam(retinanet.parameters(), lr=1e-5)
batches = [(torch.randn(BATCH, 3, SIDE, SIDE).to(device), annotate()) for _ in range(2 if TINY else 4)]
loss_hist, times = [], []
for iter_num in range(STEPS):
    began = time.time()
    img, annot = batches[iter_num % len(batches)]
    optimizer.zero_grad()
    classification_loss, regression_loss = retinanet(img, annot.to(device))
    loss = classification_loss + regression_loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(retinanet.parameters(), 0.1)
    optimizer.step()
    loss_hist.append(float(loss))
    times.append(time.time() - began)
    if iter_num % 10 == 0:
        print(
            f"Iteration: {iter_num} | Classification loss: {float(classification_loss):1.5f} | "
            f"Regression loss: {float(regression_loss):1.5f} | Running loss: {np.mean(loss_hist):1.5f}"
        )
kept = times[min(STEPS // 2, 8) :]
print(
    f"first {loss_hist[0]:.5f}, last {loss_hist[-1]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration"
)
