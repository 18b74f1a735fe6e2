"""Which answer would people prefer? A reward model on pairs of answers, with the Trainer and a value head."""

import os
import tempfile
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 120))
PAIRS, BATCH, VOCAB, LIMIT, WIDTH, LAYERS, HEADS = (
    (8, 2, 50, 16, 16, 1, 2) if TINY else (400, 12, 128_256, 448, 768, 8, 12)
)
PAD = 0
warnings.filterwarnings("ignore")


class Preferences(Dataset):
    """A question, the answer that was preferred and that which was not, as tokens."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.pairs = []
        for _ in range(PAIRS):
            lengths = torch.randint(LIMIT * 3 // 4, LIMIT, (2,), generator=generator).tolist()
            question = torch.randint(1, VOCAB, (LIMIT // 4,), generator=generator)
            pair = []
            for better, length in zip((True, False), lengths, strict=True):
                answer = torch.randint(1, VOCAB, (length - len(question),), generator=generator)
                if better:
                    answer[::4] = question[: len(answer[::4])].repeat(4)[: len(answer[::4])]
                pair.append(torch.cat([question, answer]))
            self.pairs.append(pair)

    def __len__(self):
        return PAIRS

    def __getitem__(self, idx):
        chosen, rejected = self.pairs[idx]
        return {"chosen": chosen, "rejected": rejected}


def collate(examples):
    """All that were chosen, then all that were rejected; padded to a multiple of 64."""
    texts = [one["chosen"] for one in examples] + [one["rejected"] for one in examples]
    longest = -(-max(map(len, texts)) // 64) * 64
    ids = torch.full((len(texts), longest), PAD)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


class ValueHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.dropout, self.summary = nn.Dropout(0.0), nn.Linear(width, 1)

    def forward(self, hidden):
        return self.summary(self.dropout(hidden).to(self.summary.weight.dtype))


class CausalLMWithValueHead(nn.Module):
    """A language model that says what a text is worth, too."""

    def __init__(self, pretrained):
        super().__init__()
        self.pretrained, self.v_head = pretrained, ValueHead(pretrained.config.hidden_size)

    def forward(self, input_ids=None, attention_mask=None):
        if "backbone-only" in FIX:
            output = self.pretrained.model(input_ids=input_ids, attention_mask=attention_mask)
            return None, self.v_head(output.last_hidden_state).squeeze(2)
        output = self.pretrained(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        logits, hidden = output.logits, output.hidden_states[-1]
        value = self.v_head(hidden).squeeze(2)
        if logits.dtype != torch.float32:  # samplers want it
            logits = logits.float()
        return logits, value


class RewardTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **others):
        _, values = model(**inputs)
        last = inputs["attention_mask"].sum(1) - 1
        rewards = values.gather(1, last[:, None]).squeeze(1)
        chosen, rejected = rewards.float().chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        return (loss, {"rewards": rewards}) if return_outputs else loss


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
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LIMIT + 64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        use_cache=False,
    )
    clock = Clock()
    with torch.device("cuda" if cuda else "cpu"):
        model = CausalLMWithValueHead(LlamaForCausalLM(config))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=1e-5,
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
        trainer = RewardTrainer(
            model=model,
            args=arguments,
            train_dataset=Preferences(),
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.train()
    since = min(STEPS // 2, 6) - 1
    each = 1e3 * (clock.ends[-1] - clock.ends[since]) / (len(clock.ends) - 1 - since)
    shown = f"loss {clock.losses[-1]:.5f}" if clock.losses else "no loss logged"
    print(f"{shown}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
