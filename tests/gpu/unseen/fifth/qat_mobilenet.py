"""Training MobileNetV2 for eight bits: weights and activations are rounded as they will be."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 25))
BATCH, SIDE, CLASSES, STEM, SETTINGS = (
    (2, 32, 5, 8, ((1, 8, 1, 1), (6, 12, 2, 2)))
    if TINY
    else (
        64,
        128,
        100,
        32,
        (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ),
    )
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class MovingAverageObserver(nn.Module):
    """Smallest and largest value of a tensor, or of each of its rows, averaged over steps."""

    def __init__(self, channels, quant_min, quant_max, symmetric, averaging_constant=0.01):
        super().__init__()
        self.channels, self.quant_min, self.quant_max = channels, quant_min, quant_max
        self.symmetric, self.averaging_constant = symmetric, averaging_constant
        self.register_buffer("eps", torch.tensor([torch.finfo(torch.float32).eps]))
        self.register_buffer("min_val", torch.full((channels,), float("inf")))
        self.register_buffer("max_val", torch.full((channels,), float("-inf")))

    def forward(self, x_orig):
        x = x_orig.detach().to(self.min_val.dtype)
        rows = x.flatten(1) if self.channels > 1 else x.reshape(1, -1)
        min_cur, max_cur = torch.aminmax(rows, dim=1)
        first = torch.isinf(self.min_val)
        min_val = self.min_val + self.averaging_constant * (min_cur - self.min_val)
        max_val = self.max_val + self.averaging_constant * (max_cur - self.max_val)
        self.min_val.copy_(torch.where(first, min_cur, min_val))
        self.max_val.copy_(torch.where(first, max_cur, max_val))
        return x_orig

    def calculate_qparams(self):
        min_val_neg = torch.min(self.min_val, torch.zeros_like(self.min_val))
        max_val_pos = torch.max(self.max_val, torch.zeros_like(self.max_val))
        if self.symmetric:
            half = (self.quant_max - self.quant_min) // 2
            largest = torch.max(-min_val_neg / (half + 1), max_val_pos / half)
            scale = torch.max(largest, self.eps)
            return scale, torch.zeros_like(scale, dtype=torch.int32)
        scale = (max_val_pos - min_val_neg) / float(self.quant_max - self.quant_min)
        scale = torch.max(scale, self.eps)
        zero_point = self.quant_min - torch.round(min_val_neg / scale).to(torch.int32)
        return scale, torch.clamp(zero_point, self.quant_min, self.quant_max)


class FakeQuantize(nn.Module):
    def __init__(self, channels, quant_min, quant_max, symmetric):
        super().__init__()
        self.observer = MovingAverageObserver(channels, quant_min, quant_max, symmetric)
        self.quant_min, self.quant_max, self.channels = quant_min, quant_max, channels
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("zero_point", torch.zeros(channels, dtype=torch.int32))
        self.flags = True, True

    def forward(self, x):
        if "flags-in-python" in FIX:
            observing, rounding = self.flags
        else:
            observing, rounding = self.observer_enabled[0] == 1, self.fake_quant_enabled[0] == 1
        if observing:
            self.observer(x.detach())
            scale, zero_point = self.observer.calculate_qparams()
            self.scale.copy_(scale)
            self.zero_point.copy_(zero_point)
        if rounding:
            if self.channels > 1:
                return torch.fake_quantize_per_channel_affine(
                    x, self.scale, self.zero_point, 0, self.quant_min, self.quant_max
                )
            return torch.fake_quantize_per_tensor_affine(
                x, self.scale, self.zero_point, self.quant_min, self.quant_max
            )
        return x


class FusedFakeQuantize(FakeQuantize):
    """Watching, averaging and rounding in one operator."""

    def __init__(self, channels, quant_min, quant_max, symmetric):
        super().__init__(channels, quant_min, quant_max, symmetric)
        self.symmetric = symmetric
        self.register_buffer("on", torch.ones(1, dtype=torch.long))

    def forward(self, x):
        return torch.fused_moving_avg_obs_fake_quant(
            x,
            self.on,
            self.on,
            self.observer.min_val,
            self.observer.max_val,
            self.scale,
            self.zero_point,
            self.observer.averaging_constant,
            self.quant_min,
            self.quant_max,
            0,
            self.channels > 1,
            self.symmetric,
        )


Fake = FusedFakeQuantize if "fused-observer" in FIX else FakeQuantize


class QATConvBNReLU(nn.Module):
    def __init__(self, a, b, k=3, stride=1, groups=1, relu=True):
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, stride, (k - 1) // 2, groups=groups, bias=False)
        self.bn, self.relu = nn.BatchNorm2d(b), relu
        self.weight_fake_quant, self.activation_post_process = (
            Fake(b, -128, 127, True),
            Fake(1, 0, 255, False),
        )

    def forward(self, x):
        weight = self.weight_fake_quant(self.conv.weight)
        x = F.conv2d(x, weight, None, self.conv.stride, self.conv.padding, 1, self.conv.groups)
        x = self.bn(x)
        return self.activation_post_process(F.relu6(x) if self.relu else x)


class InvertedResidual(nn.Module):
    def __init__(self, a, b, stride, expand):
        super().__init__()
        hidden, layers = a * expand, []
        if expand != 1:
            layers.append(QATConvBNReLU(a, hidden, 1))
        layers += [QATConvBNReLU(hidden, hidden, 3, stride, hidden), QATConvBNReLU(hidden, b, 1, relu=False)]
        self.conv = nn.Sequential(*layers)
        self.skip_add = Fake(1, 0, 255, False) if stride == 1 and a == b else None

    def forward(self, x):
        return self.conv(x) if self.skip_add is None else self.skip_add(x + self.conv(x))


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, a, features = Fake(1, 0, 255, False), STEM, [QATConvBNReLU(3, STEM, 3, 2)]
        for t, c, n, s in SETTINGS:
            for i in range(n):
                features.append(InvertedResidual(a, c, s if i == 0 else 1, t))
                a = c
        self.features = nn.Sequential(*features, QATConvBNReLU(a, 4 * a, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * a, CLASSES))

    def forward(self, x):
        return self.classifier(self.features(self.quant(x)).mean([2, 3]))


def accuracy(output, target, topk=(1, 5)):
    pred = output.topk(max(topk), 1).indices.t()
    correct = pred.eq(target[None])
    return [correct[:k].float().sum() * (100.0 / len(target)) for k in topk]


model = MobileNetV2().to(device).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
labels = torch.randint(0, CLASSES, (8 * BATCH,), device=device)
pictures = torch.randn(8 * BATCH, 3, SIDE, SIDE, device=device) + labels[:, None, None, None] / CLASSES
times, cnt = [], 0
for step in range(STEPS):
    began = time.time()
    rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(labels)
    image, target = pictures[rows.to(device)], labels[rows.to(device)]
    output = model(image)
    loss = F.cross_entropy(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    acc1, acc5 = accuracy(output, target)
    shown = f"loss {loss.item():.4f} acc1 {acc1.item():.2f} acc5 {acc5.item():.2f}"
    times.append(time.time() - began)
    if step % 10 == 0:
        print(f"[{step}] {shown}")
kept = times[min(STEPS // 2, 6) :]
print(f"{shown}; {1e3 * sum(kept) / len(kept):.3f} ms a batch")
