"""Lottery tickets: a network learns, loses its smallest weights, and begins again with what is left."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 9 if TINY else 150))
PICTURES, BATCH, SIZE, WIDTHS, FULL = (
    (60, 8, 16, (8, "M", 16, "M"), 16)
    if TINY
    else (20000, 128, 32, (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512), 512)
)
KINDS, ROUNDS, PRUNED, EPS = 10, 3, 20, 1e-6  # rounds of training; percent of weights that go after each
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def vgg():
    layers, enter, size = [], 3, SIZE
    for wide in WIDTHS:
        if wide == "M":
            layers.append(nn.MaxPool2d(2))
            size //= 2
        else:
            layers += [nn.Conv2d(enter, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
            enter = wide
    classifier = [nn.Linear(enter * size * size, FULL), nn.ReLU(), nn.Linear(FULL, KINDS)]
    return nn.Sequential(*layers, nn.Flatten(), *classifier)


def pictures():
    kinds = torch.randint(KINDS, (PICTURES,), device=device)
    looks = torch.rand(KINDS, 3, SIZE, SIZE, device=device)
    mixed = 0.5 * looks[kinds] + 0.5 * torch.rand(PICTURES, 3, SIZE, SIZE, device=device)
    return (255 * mixed).to(torch.uint8), kinds


def freeze_pruned(model):
    """What was pruned stays as it is: its gradients are zero."""
    for name, p in model.named_parameters():
        if "weight" not in name:
            continue
        if "on-device" in FIX:
            p.grad.masked_fill_(p.detach().abs() < EPS, 0)
            continue
        tensor = p.data.cpu().numpy()
        grad_tensor = p.grad.data.cpu().numpy()
        grad_tensor = np.where(np.abs(tensor) < EPS, 0, grad_tensor)
        p.grad.data = torch.from_numpy(grad_tensor).to(device)


def prune(model, masks):
    """Take the smallest of those that are alive out of each weight of a product."""
    for name, p in model.named_parameters():
        if "weight" in name and p.dim() > 1:
            tensor = p.data.cpu().numpy()
            alive = np.abs(tensor[np.nonzero(tensor)])
            masks[name] = np.where(np.abs(tensor) < np.percentile(alive, PRUNED), 0, masks[name])


def rewind(model, masks, first):
    model.load_state_dict(first)
    for name, p in model.named_parameters():
        if name in masks:
            p.data = p.data * torch.from_numpy(masks[name]).to(device)


def main():
    have, kinds = pictures()
    model = vgg().to(device)
    first = copy.deepcopy(model.state_dict())
    masks = {
        name: np.ones(p.shape, np.float32)
        for name, p in model.named_parameters()
        if "weight" in name and p.dim() > 1
    }
    seconds, counted, shown, each_round = 0.0, 0, 0.0, max(2, STEPS // ROUNDS)
    for round_ in range(ROUNDS):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=0)
        lead = min(each_round // 2, 8)
        began = 0.0
        for step in range(each_round):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            rows = torch.randint(PICTURES, (BATCH,), device=device)
            loss = F.cross_entropy(model(have[rows].float().div(127.5).sub(1)), kinds[rows])
            optimizer.zero_grad()
            loss.backward()
            freeze_pruned(model)
            optimizer.step()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == each_round - 1:
                shown = loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds, counted = seconds + time.perf_counter() - began, counted + each_round - lead
        alive = sum(mask.sum() for mask in masks.values()) / sum(mask.size for mask in masks.values())
        print(f"round {round_}: {alive:.1%} of the weights are alive, loss {shown:.4f}")
        if round_ < ROUNDS - 1:
            prune(model, masks)
            rewind(model, masks, first)
    print(f"loss {shown:.6f}; {1e3 * seconds / counted:.3f} ms per step")


main()
