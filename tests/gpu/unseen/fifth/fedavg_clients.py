"""Federated averaging, simulated: some clients train on their own pictures, then weights are averaged."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 5))  # rounds
USERS, CHOSEN, SHARD, LOCAL_BS, LOCAL_EP, WIDTH = (4, 2, 16, 8, 1, 4) if TINY else (50, 5, 640, 32, 1, 32)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Pictures(Dataset):
    """Ten classes of 32 by 32 pixels, normalised when they are asked for, as torchvision's sets do it."""

    def __init__(self, size):
        self.targets = rng.integers(0, 10, size)
        means = rng.integers(60, 196, (10, 1, 1, 3))
        noise = rng.integers(-50, 51, (size, 32, 32, 3))
        self.data = (means[self.targets] + noise).astype(np.uint8)
        self.mean = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
        self.std = torch.tensor([0.2023, 0.1994, 0.2010])[:, None, None]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = torch.from_numpy(self.data[index]).permute(2, 0, 1).float().div(255)
        return image.sub_(self.mean).div_(self.std), int(self.targets[index])


class DatasetSplit(Dataset):
    def __init__(self, dataset, idxs):
        self.dataset, self.idxs = dataset, [int(i) for i in idxs]

    def __len__(self):
        return len(self.idxs)

    def __getitem__(self, item):
        return self.dataset[self.idxs[item]]


class CNNCifar(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.conv1, self.conv2 = nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 2 * w, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(2 * w, 2 * w, 3, padding=1), nn.Conv2d(2 * w, 4 * w, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(2, 2 * w), nn.GroupNorm(2, 4 * w)
        self.fc1, self.fc2 = nn.Linear(4 * w * 16, 4 * w), nn.Linear(4 * w, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv2(F.relu(self.conv1(x))))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv4(F.relu(self.conv3(x))))), 4)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class DeviceBatches:
    """The same batches from a copy of the whole set on the device."""

    def __init__(self, order):
        self.batches = torch.as_tensor(order, device=device).split(LOCAL_BS)

    def __iter__(self):
        for rows in self.batches:
            yield on_device[0][rows], on_device[1][rows]


class LocalUpdate:
    def __init__(self, dataset, idxs):
        order = rng.permutation(idxs)
        if "data-on-device" in FIX:
            self.trainloader = DeviceBatches(order)
        else:
            self.trainloader = DataLoader(DatasetSplit(dataset, order), batch_size=LOCAL_BS, num_workers=2)

    def update_weights(self, model):
        model.train()
        epoch_loss = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        for _ in range(LOCAL_EP):
            batch_loss = []
            for images, labels in self.trainloader:
                images, labels = images.to(device), labels.to(device)
                model.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                batch_loss.append(loss.item())
            epoch_loss.append(sum(batch_loss) / len(batch_loss))
        if "weights-on-device" in FIX:
            return model.state_dict(), sum(epoch_loss) / len(epoch_loss)
        weights = {name: value.cpu() for name, value in model.state_dict().items()}  # sent to the server
        return copy.deepcopy(weights), sum(epoch_loss) / len(epoch_loss)


def average_weights(w):
    w_avg = copy.deepcopy(w[0])
    for key in w_avg:
        for i in range(1, len(w)):
            w_avg[key] += w[i][key]
        w_avg[key] = torch.div(w_avg[key], len(w))
    return w_avg


train_dataset = Pictures(USERS * SHARD)
shards = np.argsort(train_dataset.targets, kind="stable").reshape(2 * USERS, -1)  # two classes for most users
dealt = rng.permutation(2 * USERS).reshape(USERS, 2)
user_groups = {user: np.concatenate(shards[pair]) for user, pair in enumerate(dealt)}
if "data-on-device" in FIX:
    images = torch.from_numpy(train_dataset.data).to(device).permute(0, 3, 1, 2).float().div(255)
    images = (images - train_dataset.mean.to(device)) / train_dataset.std.to(device)
    on_device = images, torch.from_numpy(train_dataset.targets).to(device)
global_model = CNNCifar().to(device)
train_loss, times = [], []
for epoch in range(STEPS):
    start_time = time.time()
    local_weights, local_losses = [], []
    global_model.train()
    idxs_users = rng.choice(range(USERS), CHOSEN, replace=False)
    for idx in idxs_users:
        local_model = LocalUpdate(train_dataset, user_groups[idx])
        w, loss = local_model.update_weights(copy.deepcopy(global_model))
        local_weights.append(w)
        local_losses.append(loss)
    global_model.load_state_dict(average_weights(local_weights))
    train_loss.append(sum(local_losses) / len(local_losses))
    times.append(time.time() - start_time)
    print(f" | Global Training Round : {epoch + 1} | loss {train_loss[-1]:.4f}")
kept = times[min(STEPS // 2, 2) :]
print(f"Training loss {np.mean(train_loss):.5f}; mean round {sum(kept) / len(kept):0.5f}s")
