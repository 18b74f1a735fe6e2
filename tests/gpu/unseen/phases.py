"""Epochs as most jobs have them: train, evaluate, save; and again."""

import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = int(os.environ.get("STEPS", 2 if TINY else 20))
TRAIN, VAL, BATCH, SIZE, DIM, DEPTH = (32, 16, 8, 32, 32, 2) if TINY else (2560, 1024, 64, 128, 768, 16)
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
torch.manual_seed(0)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def conv_mixer():
    blocks = [
        nn.Sequential(
            Residual(nn.Conv2d(DIM, DIM, 7, groups=DIM, padding=3), nn.GELU(), nn.BatchNorm2d(DIM)),
            nn.Conv2d(DIM, DIM, 1),
            nn.GELU(),
            nn.BatchNorm2d(DIM),
        )
        for _ in range(DEPTH)
    ]
    return nn.Sequential(
        nn.Conv2d(3, DIM, 8, 8),
        nn.GELU(),
        nn.BatchNorm2d(DIM),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(DIM, 200),
    )


def dataset(count):
    return TensorDataset(torch.randn(count, 3, SIZE, SIZE), torch.randint(0, 200, (count,)))


model = conv_mixer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=2e-5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
criterion = nn.CrossEntropyLoss()
workers = 0 if TINY else 4
train_loader = DataLoader(
    dataset(TRAIN), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
)
val_loader = DataLoader(dataset(VAL), BATCH, num_workers=workers, persistent_workers=workers > 0)
precision = torch.autocast(device, torch.bfloat16, enabled="bf16" in FIX)


def train():
    model.train()
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        with precision:
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    return loss.item()


def evaluate():
    model.eval()
    correct = 0
    context = torch.no_grad() if "no-grad" in FIX else torch.enable_grad()
    for images, labels in val_loader:
        images, labels = images.to(device), labels.to(device)
        with context, precision:
            correct += (model(images).argmax(1) == labels).sum().item()
    return correct / VAL


def save(epoch, accuracy):
    state = {
        "epoch": epoch,
        "accuracy": accuracy,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, folder / "last.pt")
    torch.save(state, folder / f"epoch-{epoch % 3}.pt")


best, rows = 0.0, []
for epoch in range(EPOCHS):
    started = time.perf_counter()
    loss = train()
    trained = time.perf_counter()
    accuracy = evaluate()
    evaluated = time.perf_counter()
    if "save-rarely" not in FIX or epoch == EPOCHS - 1:
        save(epoch, accuracy)
    saved = time.perf_counter()
    rows.append((trained - started, evaluated - trained, saved - evaluated))
    print(
        f"epoch {epoch}: loss {loss:.4f} acc {accuracy:.4f} | "
        + " ".join(f"{what} {t:.2f}s" for what, t in zip(("train", "eval", "save"), rows[-1], strict=True))
    )
for file in folder.iterdir():
    file.unlink()
training, evaluation, saving = (sum(column) / len(column) for column in zip(*rows[1:], strict=True))
print(
    f"per epoch: train {training:.4f} s, eval {evaluation:.4f} s, save {saving:.4f} s, "
    f"all {training + evaluation + saving:.4f} s; "
    f"{training / len(train_loader) * 1e3:.3f} ms per training step"
)
