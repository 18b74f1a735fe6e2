"""Fine-tune a vision transformer on photographs with the Trainer, pictures prepared as its processor does."""

import os
import tempfile
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 100))
PHOTOS, BATCH, LARGE, SIDE, PATCH, KINDS, WIDTH, LAYERS, HEADS = (
    (12, 4, 40, 32, 16, 5, 16, 1, 2) if TINY else (640, 64, 256, 224, 16, 101, 384, 12, 6)
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
warnings.filterwarnings("ignore")


def rescale(image, scale, dtype=np.float32):
    return (image.astype(np.float64) * scale).astype(dtype)


def normalize(image, mean, std):
    return (image - np.array(mean, dtype=image.dtype)) / np.array(std, dtype=image.dtype)


class Photos(Dataset):
    """Photographs of dishes in memory; cut and turned by chance."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.photos = rng.integers(0, 256, (PHOTOS, LARGE, LARGE, 3), dtype=np.uint8)
        self.kinds = rng.integers(0, KINDS, PHOTOS).tolist()
        self.rng = np.random.default_rng(1)

    def __len__(self):
        return PHOTOS

    def __getitem__(self, i):
        top, left = self.rng.integers(0, LARGE - SIDE + 1, 2)
        image = self.photos[i, top : top + SIDE, left : left + SIDE]
        if self.rng.random() < 0.5:
            image = image[:, ::-1]
        if "normalized-on-device" in FIX:
            pixels = torch.from_numpy(np.ascontiguousarray(image))
        else:
            image = normalize(rescale(image, 1 / 255), MEAN, STD)
            pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return {"pixel_values": pixels, "labels": self.kinds[i]}


class Classifier(nn.Module):
    """The transformer; bytes are made what it wants first."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, pixel_values, labels=None):
        if pixel_values.dtype == torch.uint8:
            pixel_values = (pixel_values.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        return self.vit(pixel_values=pixel_values, labels=labels)


def collate(examples):
    return {
        "pixel_values": torch.stack([one["pixel_values"] for one in examples]),
        "labels": torch.tensor([one["labels"] for one in examples]),
    }


class Clock(TrainerCallback):
    def __init__(self):
        self.ends, self.losses = [], []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == STEPS and torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def main():
    cuda = torch.cuda.is_available()
    set_seed(0)
    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        image_size=SIDE,
        patch_size=PATCH,
        num_labels=KINDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    clock, model = Clock(), Classifier(ViTForImageClassification(config))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=5e-5,
            warmup_steps=5,
            bf16=cuda,
            use_cpu=not cuda,
            optim="adamw_torch_fused" if cuda else "adamw_torch",
            save_strategy="no",
            logging_steps=20 if "log-rarely" in FIX else 1,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Photos(), data_collator=collate, callbacks=[clock]
        )
        trainer.train()
    since = min(STEPS // 2, 6) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    shown = f"loss {clock.losses[-1]:.5f}" if clock.losses else "no loss logged"
    print(f"{shown}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
