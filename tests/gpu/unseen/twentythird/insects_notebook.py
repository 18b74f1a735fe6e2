"""Which insect is it? A network learns it, and who is taken for whom is counted. From a notebook."""

# %% What is needed
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = int(os.environ.get("STEPS", 3 if TINY else 24))
TRAIN, VALID, BATCH, SIZE, KINDS, WIDE = (16, 8, 8, 16, 4, 8) if TINY else (1536, 512, 128, 64, 24, 64)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


# %% Pictures: bytes, on the device
def pictures(count):
    kinds = torch.randint(KINDS, (count,), device=device)
    y, x = torch.meshgrid(*2 * [torch.linspace(-3, 3, SIZE, device=device)], indexing="ij")
    turned = kinds[:, None, None] * 3.14 / KINDS
    stripes = torch.sin(4 * (x * turned.cos() + y * turned.sin()))[:, None]
    bright = 128 + 60 * stripes + 50 * torch.randn(count, 3, SIZE, SIZE, device=device)
    return bright.clamp(0, 255).to(torch.uint8), kinds


train_x, train_y = pictures(TRAIN)
valid_x, valid_y = pictures(VALID)
print(f"{TRAIN} insects to learn from, {VALID} to be asked for, of {KINDS} kinds")


# %% A network
class Residual(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


model = nn.Sequential(
    nn.Conv2d(3, WIDE, 3, 1, 1), Residual(WIDE, WIDE, 1), Residual(WIDE, WIDE, 1),
    Residual(WIDE, 2 * WIDE, 2), Residual(2 * WIDE, 2 * WIDE, 1),
    Residual(2 * WIDE, 4 * WIDE, 2), Residual(4 * WIDE, 4 * WIDE, 1),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * WIDE, KINDS),
).to(device).to(memory_format=torch.channels_last)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=low)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
print(f"{sum(weight.numel() for weight in model.parameters())} weights")


# %% What is done with a batch
def logits_of(x):
    x = x.contiguous(memory_format=torch.channels_last).float() / 127.5 - 1
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        return model(x)


def count(confusion, labels, found):
    """Who is taken for whom: a row for each kind that it is, a column for each that was said."""
    if "counted-together" in FIX:
        places = labels * KINDS + found
        confusion += torch.bincount(places, minlength=KINDS * KINDS).view(KINDS, KINDS)
        return
    for t, p in zip(labels.view(-1), found.view(-1), strict=True):
        confusion[t.long(), p.long()] += 1


def recall(confusion):
    return confusion.diag() / confusion.sum(1).clamp(min=1)


# %% Learning
history = []
lead, began = min(EPOCHS // 2, 3), 0.0
shown = valid_loss = 0.0
for epoch in range(EPOCHS):
    if epoch == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    model.train()
    confusion = torch.zeros(KINDS, KINDS, device=device)
    parts = torch.randperm(TRAIN, device=device).split(BATCH)
    for i, part in enumerate(parts):
        labels = train_y[part]
        logits = logits_of(train_x[part])
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or i == len(parts) - 1:
            shown = loss.item()
        count(confusion, labels, logits.argmax(1))
    learned = recall(confusion).mean().item()

    model.eval()
    confusion = torch.zeros(KINDS, KINDS, device=device)
    with torch.no_grad():
        losses = []
        for x, labels in zip(valid_x.split(BATCH), valid_y.split(BATCH), strict=True):
            logits = logits_of(x)
            losses.append(F.cross_entropy(logits.float(), labels))
            count(confusion, labels, logits.argmax(1))
        valid_loss = torch.stack(losses).mean().item()
    schedule.step()
    history.append((shown, learned, valid_loss, recall(confusion).mean().item()))
    if epoch % 5 == 0:
        print("epoch {}: loss {:.4f}, recall {:.4f}; of others {:.4f}, {:.4f}".format(epoch, *history[-1]))
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (EPOCHS - lead)

# %% Which kinds are found worst
worst = recall(confusion).argsort()[:3].tolist()
print(f"worst are kinds {worst}")
print(f"loss {shown:.5f}, of others {valid_loss:.5f}, recall {history[-1][3]:.5f}; {each:.3f} ms per epoch")
