"""Fine-tune a vision transformer on plants with the Trainer; nothing shall be lost if the node goes away."""

import os
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    default_data_collator,
    set_seed,
)

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 6))  # checkpoints
SIDE, PATCH, WIDTH, LAYERS, HEADS, BATCH, SIZE, CLASSES, EVERY = (
    (32, 16, 16, 1, 2, 4, 32, 5, 2) if TINY else (224, 16, 512, 10, 8, 64, 512, 102, 10)
)


class Plants(Dataset):
    """Photographs as bytes; each species has a tint."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (SIZE,), generator=generator)
        tints = torch.randint(0, 120, (CLASSES, 3, 1, 1), dtype=torch.uint8, generator=generator)
        grain = torch.randint(0, 120, (SIZE, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        self.images = grain + tints[self.labels]

    def __len__(self):
        return SIZE

    def __getitem__(self, idx):
        return {"pixel_values": self.images[idx], "labels": int(self.labels[idx])}


class PlantViTForImageClassification(ViTForImageClassification):
    """The model, and what a processor would have done to the pictures."""

    def forward(self, pixel_values=None, labels=None, **others):
        pixel_values = pixel_values.float() / 127.5 - 1
        return super().forward(pixel_values=pixel_values, labels=labels, **others)


class Clock(TrainerCallback):
    """Notes when each tenth step has ended, before its checkpoint is written."""

    def __init__(self):
        self.ends, self.losses = [], []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % EVERY == 0:
            self.ends.append((state.global_step, time.perf_counter()))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def main():
    cuda = torch.cuda.is_available()
    set_seed(0)
    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_labels=CLASSES,
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=EVERY * STEPS,
            learning_rate=2e-4,
            warmup_steps=10,
            weight_decay=0.05,
            bf16=cuda,
            use_cpu=not cuda,
            save_strategy="steps",
            save_steps=100 * EVERY if "save-rarely" in FIX else EVERY,
            save_total_limit=2,
            save_only_model="weights-only" in FIX,
            logging_steps=EVERY if "log-rarely" in FIX else 1,
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
        )
        trainer = Trainer(
            model=PlantViTForImageClassification(config),
            args=arguments,
            train_dataset=Plants(),
            data_collator=default_data_collator,
            callbacks=[clock],
        )
        trainer.train()
        kept = sorted(name for name in os.listdir(folder) if name.startswith("checkpoint"))
    (first, began), (last, ended) = clock.ends[0], clock.ends[-1]
    each = 1e3 * (ended - began) / (last - first)
    print(
        f"loss {clock.losses[-1]:.4f}, {len(kept)} checkpoints kept, {each:.3f} ms per step with checkpoints"
    )


if __name__ == "__main__":
    main()
