"""Learn digits without remembering any of them: gradients of examples are clipped, then comes noise."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
SIZE, BATCH, WIDTH = (64, 4, 4) if TINY else (20_000, 64, 16)
CLIP, NOISE, RATE = 1.0, 1.1, 0.25
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def digits(count):
    """Ten blurred shapes, each a little moved and noisy."""
    shapes = F.avg_pool2d(torch.rand(10, 1, 28, 28, device=device), 5, 1, 2)
    labels = torch.randint(10, (count,), device=device)
    moved = torch.roll(shapes[labels], shifts=(1, -1), dims=(2, 3))
    return (moved - 0.5) * 4 + 0.3 * torch.randn(count, 1, 28, 28, device=device), labels


class Net(nn.Module):
    """Tanh instead of ReLU, and no batch norm, since that mixes examples."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, WIDTH, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2)
        self.fc1, self.fc2 = nn.Linear(2 * WIDTH * 16, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2, 1)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2, 1)
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


def summed_one_by_one(model, images, labels):
    """Clip the gradient of one example after the other, and add them up."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    total = torch.zeros((), device=device)
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        loss = F.cross_entropy(model(image[None]), label[None])
        loss.backward()
        norm = torch.stack([p.grad.norm(2) for p in model.parameters()]).norm(2)
        if "clip-on-device" in FIX:
            factor = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        else:
            factor = min(1.0, CLIP / (norm.item() + 1e-6))
        for kept, parameter in zip(sums, model.parameters(), strict=True):
            kept += factor * parameter.grad
        total += loss.detach()
    return sums, total / len(images)


def loss_of_one(parameters, model, image, label):
    loss = F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])
    return loss, loss.detach()


def summed_together(model, images, labels):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each, losses = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, None, 0, 0))(
        parameters, model, images, labels
    )
    norms = torch.stack([g.flatten(1).norm(2, dim=1) for g in each.values()]).norm(2, dim=0)
    factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    return [torch.tensordot(factors, g, 1) for g in each.values()], losses.mean()


def train():
    images, labels = digits(SIZE)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    summed = summed_together if "vmapped" in FIX else summed_one_by_one
    lead, began = min(STEPS // 2, 4), 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        # Each example is in the batch with the same chance; here always as many are.
        chosen = torch.randint(SIZE, (BATCH,), device=device)
        sums, loss = summed(model, images[chosen], labels[chosen])
        for parameter, kept in zip(model.parameters(), sums, strict=True):
            noise = torch.randn_like(parameter) * (NOISE * CLIP)
            parameter.grad = (kept + noise) / BATCH
        optimizer.step()
        shown = loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {shown:.4f}")
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


train()
