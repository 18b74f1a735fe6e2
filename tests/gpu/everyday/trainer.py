"""BERT trained by Hugging Face's Trainer: bf16, compiled, batches collated on the fly."""

import time

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Reviews(Dataset):
    def __len__(self):
        return 32 * 150

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(0, 30000, (128,), generator=g), "labels": i % 2}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step in (30, 150):
            torch.cuda.synchronize()
            if state.global_step == 30:
                self.began = time.perf_counter()
            else:
                print(f"step_ms {(time.perf_counter() - self.began) / 120 * 1e3:.3f}")


model = BertForSequenceClassification(
    BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
)
arguments = TrainingArguments(
    output_dir="/tmp/trainer",
    per_device_train_batch_size=32,
    max_steps=150,
    bf16=True,
    torch_compile=True,
    logging_steps=50,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=Reviews(), callbacks=[Clock()]).train()
