"""Where in this text is the answer? BERT learns to point at its begin and end, with the Trainer."""

import os
import tempfile
import time
import warnings

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 100))
FEATURES, BATCH, LENGTH, VOCAB, WIDTH, LAYERS, HEADS = (
    (16, 2, 24, 60, 16, 1, 2) if TINY else (480, 24, 512, 30_522, 768, 12, 12)
)
QUESTION = LENGTH // 8  # words
warnings.filterwarnings("ignore")


class Passages(Dataset):
    """Questions with a piece of a text as long as fits; the answer repeats words of the question."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(5, VOCAB, (FEATURES, LENGTH), generator=generator)
        self.starts = torch.randint(QUESTION + 1, LENGTH - 8, (FEATURES,), generator=generator)
        for words, start in zip(self.words, self.starts, strict=True):
            words[start : start + 3] = words[1:4].clone()
        self.types = (torch.arange(LENGTH) >= QUESTION).long()

    def __len__(self):
        return FEATURES

    def __getitem__(self, index):
        return {
            "input_ids": self.words[index],
            "token_type_ids": self.types,
            "start_positions": self.starts[index],
            "end_positions": self.starts[index] + 2,
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


def make_model():
    """Maps of attention are wanted for figures later, which needs attention of the kind that returns them."""
    maps = "no-maps" not in FIX
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager" if maps else "sdpa",
    )
    config.output_attentions = maps
    return BertForQuestionAnswering(config)


def main():
    cuda = torch.cuda.is_available()
    set_seed(0)
    clock = Clock()
    with torch.device("cuda" if cuda else "cpu"):
        model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=3e-5,
            warmup_steps=5,
            bf16=cuda,
            use_cpu=not cuda,
            optim="adamw_torch_fused" if cuda else "adamw_torch",
            save_strategy="no",
            logging_steps=20 if "log-rarely" in FIX else 1,
            report_to="none",
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Passages(),
            data_collator=default_data_collator,
            callbacks=[clock],
        )
        trainer.train()
    since = min(STEPS // 2, 6) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    shown = f"loss {clock.losses[-1]:.5f}" if clock.losses else "no loss logged"
    print(f"{shown}; {each:.3f} ms per step")


main()
