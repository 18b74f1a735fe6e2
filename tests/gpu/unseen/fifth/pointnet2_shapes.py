"""PointNet++ on shapes of 1024 points: farthest points, balls around them, small networks on each ball."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 15))
BATCH, POINTS, FIRST, SECOND, CLASSES, WIDTH = (2, 64, 16, 8, 4, 4) if TINY else (24, 1024, 512, 128, 40, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


def square_distance(src, dst):
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src**2, -1).unsqueeze(-1)
    dist += torch.sum(dst**2, -1).unsqueeze(1)
    return dist


def index_points(points, idx):
    """Rows of each cloud: [B, N, C] and [B, S] or [B, S, K] to [B, S, C] or [B, S, K, C]."""
    shape = [len(points)] + [1] * (idx.dim() - 1)
    batch_indices = torch.arange(len(points), dtype=torch.long).to(device).view(shape).expand_as(idx)
    return points[batch_indices, idx, :]


def farthest_point_sample(xyz, npoint):
    B, N, _ = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long).to(device)
    distance = torch.ones(B, N).to(device) * 1e10
    farthest = torch.randint(0, N, (B,), dtype=torch.long).to(device)
    batch_indices = torch.arange(B, dtype=torch.long).to(device)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        if "minimum" in FIX:
            distance = torch.minimum(distance, dist)
        else:
            mask = dist < distance
            distance[mask] = dist[mask]
        farthest = torch.max(distance, -1)[1]
    return centroids


def query_ball_point(radius, nsample, xyz, new_xyz):
    B, N, _ = xyz.shape
    S = new_xyz.shape[1]
    group_idx = torch.arange(N, dtype=torch.long).to(device).view(1, 1, N).repeat([B, S, 1])
    sqrdists = square_distance(new_xyz, xyz)
    group_idx[sqrdists > radius**2] = N
    group_idx = group_idx.sort(dim=-1)[0][:, :, :nsample]
    group_first = group_idx[:, :, 0].view(B, S, 1).repeat([1, 1, nsample])
    mask = group_idx == N
    group_idx[mask] = group_first[mask]
    return group_idx


class SetAbstraction(nn.Module):
    def __init__(self, npoint, radius, nsample, channels, mlp):
        super().__init__()
        self.npoint, self.radius, self.nsample = npoint, radius, nsample
        sizes = list(zip([channels, *mlp[:-1]], mlp, strict=True))
        self.mlp_convs = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in sizes)
        self.mlp_bns = nn.ModuleList(nn.BatchNorm2d(b) for _, b in sizes)

    def forward(self, xyz, points):
        if self.npoint is None:
            new_xyz, grouped = xyz.mean(1, keepdim=True), xyz[:, None]
            grouped = grouped if points is None else torch.cat([grouped, points[:, None]], -1)
        else:
            new_xyz = index_points(xyz, farthest_point_sample(xyz, self.npoint))
            idx = query_ball_point(self.radius, self.nsample, xyz, new_xyz)
            grouped = index_points(xyz, idx) - new_xyz.unsqueeze(2)
            if points is not None:
                grouped = torch.cat([grouped, index_points(points, idx)], -1)
        x = grouped.permute(0, 3, 2, 1)
        for conv, bn in zip(self.mlp_convs, self.mlp_bns, strict=True):
            x = F.relu(bn(conv(x)))
        return new_xyz, torch.max(x, 2)[0].permute(0, 2, 1)


class PointNet2(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.sa1 = SetAbstraction(FIRST, 0.2, 32 if not TINY else 4, 3, [w, w, 2 * w])
        self.sa2 = SetAbstraction(SECOND, 0.4, 64 if not TINY else 4, 2 * w + 3, [2 * w, 2 * w, 4 * w])
        self.sa3 = SetAbstraction(None, None, None, 4 * w + 3, [4 * w, 8 * w, 16 * w])
        self.fc1, self.bn1, self.drop1 = nn.Linear(16 * w, 8 * w), nn.BatchNorm1d(8 * w), nn.Dropout(0.4)
        self.fc2, self.bn2, self.drop2 = nn.Linear(8 * w, 4 * w), nn.BatchNorm1d(4 * w), nn.Dropout(0.4)
        self.fc3 = nn.Linear(4 * w, CLASSES)

    def forward(self, xyz):
        xyz, points = self.sa1(xyz, None)
        xyz, points = self.sa2(xyz, points)
        x = self.sa3(xyz, points)[1].flatten(1)
        x = self.drop1(F.relu(self.bn1(self.fc1(x))))
        x = self.drop2(F.relu(self.bn2(self.fc2(x))))
        return F.log_softmax(self.fc3(x), -1)


class ShapeDataset(torch.utils.data.Dataset):
    """Ellipsoids whose axes depend on the class."""

    def __init__(self, size):
        self.labels = rng.integers(0, CLASSES, size)
        axes = rng.uniform(0.3, 1, (CLASSES, 3))[self.labels]
        points = rng.standard_normal((size, POINTS, 3))
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
        self.points = (points * axes[:, None]).astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


def random_point_dropout(batch_pc, max_dropout_ratio=0.875):
    for b in range(batch_pc.shape[0]):
        dropout_ratio = rng.random() * max_dropout_ratio
        drop_idx = np.where(rng.random(batch_pc.shape[1]) <= dropout_ratio)[0]
        if len(drop_idx) > 0:
            batch_pc[b, drop_idx, :] = batch_pc[b, 0, :]
    return batch_pc


def augment(points):
    if "augment-on-device" in FIX:
        points = points.to(device)
        ratio = 0.875 * torch.rand(len(points), 1, 1, device=device)
        dropped = torch.rand(*points.shape[:2], 1, device=device) <= ratio
        points = torch.where(dropped, points[:, :1], points)
        scale = torch.empty(len(points), 1, 1, device=device).uniform_(0.8, 1.25)
        return points * scale + torch.empty(len(points), 1, 3, device=device).uniform_(-0.1, 0.1)
    points = random_point_dropout(points.numpy().copy())
    scales, shifts = rng.uniform(0.8, 1.25, len(points)), rng.uniform(-0.1, 0.1, (len(points), 3))
    for b in range(len(points)):
        points[b, :, :] *= scales[b]
        points[b, :, :] += shifts[b, :]
    return torch.Tensor(points).to(device)


train_set = ShapeDataset(8 * BATCH)
loader = torch.utils.data.DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
classifier = PointNet2().to(device)
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.001, weight_decay=1e-4)
steps, mean_correct, times = 0, [], []
while steps < STEPS:
    began = time.time()
    for points, target in loader:
        optimizer.zero_grad()
        points, target = augment(points), target.to(device)
        classifier.train()
        pred = classifier(points)
        loss = F.nll_loss(pred, target)
        pred_choice = pred.data.max(1)[1]
        mean_correct.append(pred_choice.eq(target.long().data).cpu().sum().item() / BATCH)
        loss.backward()
        optimizer.step()
        times.append(time.time() - began)
        began = time.time()
        steps += 1
        if steps == STEPS:
            break
    print(f"Train Instance Accuracy: {np.mean(mean_correct[-8:]):f}, loss {loss.item():.4f}")
kept = times[min(STEPS // 2, 4) :]
print(f"loss {loss.item():.4f}; {1e3 * sum(kept) / len(kept):.3f} ms/batch")
