"""How good is an essay? An encoder is fine-tuned with accelerate to give marks."""

import os
import time
import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, get_linear_schedule_with_warmup

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))
ESSAYS, BATCH, VOCAB, SHORT, LONG, WIDE, LAYERS, HEADS = (
    (12, 3, 80, 6, 14, 32, 2, 2) if TINY else (960, 16, 50_265, 300, 510, 768, 12, 12)
)
PAD = 1
warnings.filterwarnings("ignore")
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class Essays(Dataset):
    """Tokens of essays; the more rare words, the better the mark."""

    def __init__(self):
        lengths = torch.randint(SHORT, LONG + 1, (ESSAYS,)).tolist()
        self.tokens = [torch.randint(3, VOCAB, (length,)) for length in lengths]
        self.marks = [float((one > VOCAB // 2).float().mean()) for one in self.tokens]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], self.marks[i]


def collate(examples):
    longest = -(-max(len(tokens) for tokens, _ in examples) // 8) * 8
    ids = torch.full((len(examples), longest), PAD)
    for row, (tokens, _) in zip(ids, examples, strict=True):
        row[: len(tokens)] = tokens
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.tensor([mark for _, mark in examples]),
    }


def main():
    set_seed(0)
    accelerator = Accelerator(mixed_precision="bf16" if "mixed-precision" in FIX else "no")
    config = RobertaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDE,
        intermediate_size=4 * WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LONG + 12,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        num_labels=1,
        problem_type="regression",
    )
    model = RobertaForSequenceClassification(config)
    loader = DataLoader(
        Essays(), BATCH, shuffle=True, drop_last=True, collate_fn=collate, pin_memory=not TINY
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=accelerator.device.type == "cuda")
    schedule = get_linear_schedule_with_warmup(optimizer, 20, 2000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    lead, began, shown, step = min(STEPS // 2, 4), 0.0, 0.0, 0
    while step < STEPS:
        for batch in loader:
            if step == lead:
                if accelerator.device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
                shown = accelerator.gather(loss.detach()).mean().item()
            if step % 20 == 0:
                accelerator.print(f"step {step}: loss {shown:.4f}")
            step += 1
            if step == STEPS:
                break
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    accelerator.print(f"loss {shown:.5f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
