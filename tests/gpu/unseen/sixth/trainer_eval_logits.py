"""Fine-tune a causal language model with the Trainer, and evaluate it every twenty steps."""

import os
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 5))  # evaluations
BATCH, LENGTH, VOCAB, WIDTH, LAYERS, HEADS, VALIDATION, EVERY = (
    (2, 8, 40, 16, 1, 2, 4, 2) if TINY else (16, 256, 32000, 512, 6, 8, 48, 20)
)


class Sentences(Dataset):
    """Words that follow each other by simple habits."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(VOCAB, (count, 1), generator=generator)
        self.ids = (starts + torch.randint(1, 4, (count, LENGTH), generator=generator).cumsum(1)) % VOCAB

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, idx):
        return {"input_ids": self.ids[idx], "labels": self.ids[idx].clone()}


class Clock(TrainerCallback):
    """Notes when each evaluation has ended."""

    def __init__(self):
        self.ends, self.last = [], {}

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.ends.append((state.global_step, time.perf_counter()))
        self.last = metrics


def compute_metrics(prediction):
    found, labels = prediction.predictions, prediction.label_ids
    if found.ndim == 3:
        found = np.argmax(found, -1)
    return {"accuracy": float((found[:, :-1] == labels[:, 1:]).mean())}


def argmax_on_device(logits, labels):
    return logits.argmax(-1)


def main():
    cuda = torch.cuda.is_available()
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 11 // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            max_steps=EVERY * STEPS,
            learning_rate=3e-4,
            bf16=cuda,
            use_cpu=not cuda,
            eval_strategy="steps",
            eval_steps=EVERY,
            logging_steps=EVERY if "log-rarely" in FIX else 1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=Sentences(64 * BATCH, 0),
            eval_dataset=Sentences(VALIDATION, 1),
            data_collator=default_data_collator,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=argmax_on_device if "argmax-on-device" in FIX else None,
            callbacks=[clock],
        )
        trainer.train()
    (first, began), (last, ended) = clock.ends[0], clock.ends[-1]
    each = 1e3 * (ended - began) / (last - first)
    print(f"eval loss {clock.last['eval_loss']:.4f}, {each:.3f} ms per step, evaluations included")


if __name__ == "__main__":
    main()
