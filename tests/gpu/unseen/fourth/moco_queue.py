"""Momentum contrast: a ResNet-50, its slowly moving twin and a queue of 65 536 keys."""

import copy
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))
BATCH, SIZE, DIM, QUEUE, MOMENTUM, TEMPERATURE = (
    (4, 32, 16, 64, 0.999, 0.2) if TINY else (96, 224, 128, 65_536, 0.999, 0.2)
)
LAYERS, WIDTH = ((1, 1, 1, 1), 8) if TINY else ((3, 4, 6, 3), 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Bottleneck(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inplanes, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != 4 * planes:
            down = nn.Conv2d(inplanes, 4 * planes, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(down, nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + identity)


def resnet50(num_classes):
    stem = [
        nn.Conv2d(3, WIDTH, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(inplace=True),
    ]
    layers, inplanes = [*stem, nn.MaxPool2d(3, stride=2, padding=1)], WIDTH
    for stage, blocks in enumerate(LAYERS):
        for block in range(blocks):
            layers.append(Bottleneck(inplanes, WIDTH * 2**stage, 2 if stage and not block else 1))
            inplanes = 4 * WIDTH * 2**stage
    mlp = [nn.Linear(inplanes, inplanes), nn.ReLU(), nn.Linear(inplanes, num_classes)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *mlp)


class MoCo(nn.Module):
    def __init__(self, dim, K, m, T):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = resnet50(dim)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for param_k in self.encoder_k.parameters():
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def momentum_update(self):
        if "foreach-momentum" in FIX:
            torch._foreach_lerp_(
                list(self.encoder_k.parameters()), list(self.encoder_q.parameters()), 1 - self.m
            )
            return
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def dequeue_and_enqueue(self, keys):
        batch_size, ptr = keys.shape[0], int(self.queue_ptr)
        taken = min(batch_size, self.K - ptr)
        self.queue[:, ptr : ptr + taken] = keys.T[:, :taken]
        self.queue_ptr[0] = (ptr + taken) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q).float(), dim=1)
        with torch.no_grad():
            self.momentum_update()
            idx_shuffle = torch.randperm(len(im_k), device=im_k.device)
            idx_unshuffle = torch.argsort(idx_shuffle)
            k = F.normalize(self.encoder_k(im_k[idx_shuffle]).float(), dim=1)[idx_unshuffle]
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self.dequeue_and_enqueue(k)
        return logits, labels


class AverageMeter:
    def __init__(self, name):
        self.name, self.val, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.val:.4f} ({self.sum / self.count:.4f})"


def view(pictures):
    """One crop for the batch, flipped or not, a little brighter or darker."""
    room = pictures.shape[-1] - SIZE
    top, left = (int(torch.randint(0, room + 1, ())) for _ in range(2))
    x = pictures[..., top : top + SIZE, left : left + SIZE].float() / 127.5 - 1
    x = x.flip(-1) if torch.rand(()) < 0.5 else x
    x = x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1, device=x.device))
    return x.contiguous(memory_format=torch.channels_last) if "amp" in FIX else x.contiguous()


dataset = torch.randint(
    0, 256, (64 if TINY else 1024, 3, SIZE + 32, SIZE + 32), dtype=torch.uint8, device=device
)
model = MoCo(DIM, QUEUE, MOMENTUM, TEMPERATURE).to(device)
if "amp" in FIX:
    model = model.to(memory_format=torch.channels_last)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.encoder_q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
batch_time, losses, top1 = AverageMeter("Time"), AverageMeter("Loss"), AverageMeter("Acc@1")
model.train()
for i in range(STEPS):
    end = time.time()
    pictures = dataset[torch.randint(0, len(dataset), (BATCH,), device=device)]
    with torch.autocast(device.type, torch.bfloat16, enabled="amp" in FIX):
        output, target = model(view(pictures), view(pictures))
        loss = criterion(output, target)
    accuracy = (output.argmax(1) == target).float().mean() * 100
    losses.update(loss.item(), BATCH)
    top1.update(accuracy.item(), BATCH)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i >= min(STEPS // 2, 8):
        batch_time.update(time.time() - end)
    if i % 10 == 0 or i == STEPS - 1:
        print(f"Epoch: [0][{i}/{STEPS}]  {losses}  {top1}")
print(f"batch time {1e3 * batch_time.sum / batch_time.count:.3f} ms")
