"""Tag pictures with 80 labels: a ResNet in a LightningModule, mean average precision by torchmetrics."""

import os
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAveragePrecision

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
SIZE, SIDE, WIDTH, LABELS, BATCH = (24, 32, 4, 6, 8) if TINY else (1280, 128, 64, 80, 64)
warnings.filterwarnings("ignore")


class Pictures(Dataset):
    """Every label is a tint in some corner of the picture."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 200, (SIZE, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        self.labels = (torch.rand(SIZE, LABELS, generator=generator) < 3 / LABELS).long()
        self.images[:, 0, : SIDE // 4] += 10 * self.labels.sum(1).clamp(max=5).to(torch.uint8)[:, None, None]

    def __len__(self):
        return SIZE

    def __getitem__(self, idx):
        return self.images[idx], self.labels[idx]


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


def resnet18():
    w = WIDTH
    stem = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = []
    for i in range(4):
        inputs, outputs = w << max(i - 1, 0), w << i
        blocks += [BasicBlock(inputs, outputs, 2 if i else 1), BasicBlock(outputs, outputs, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w << 3, LABELS))


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = resnet18()
        self.train_map = MultilabelAveragePrecision(num_labels=LABELS, average="macro")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images.float() / 127.5 - 1)
        loss = F.binary_cross_entropy_with_logits(logits, labels.float())
        if "metric-after-epoch" in FIX:
            self.train_map.update(logits.detach().sigmoid(), labels)
            self.log("train_map", self.train_map, on_step=False, on_epoch=True)
        else:
            self.train_map(logits.detach().sigmoid(), labels)
            self.log("train_map", self.train_map, on_step=True, on_epoch=True)
        self.log("train_loss", loss, on_step=True, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Clock(L.Callback):
    """Times of batches, and their losses, for a summary."""

    def __init__(self):
        self.ends, self.losses = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = outputs["loss"]
        self.losses.append(loss.detach() if "losses-kept" in FIX else loss.item())
        self.ends.append(time.perf_counter())


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(Pictures(), BATCH, shuffle=True, drop_last=True)
    clock = Clock()
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=False,
        callbacks=[clock],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tagger(), loader)
    last = float(clock.losses[-1])
    since = min(STEPS // 2, 8) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    print(f"loss {last:.5f}; {each:.3f} ms per batch")
