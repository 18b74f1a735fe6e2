"""Distil a masked language model of twelve layers into one of six, by a small accelerator of our own."""

import contextlib
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
MAX_STEPS = int(os.environ.get("STEPS", 3 if TINY else 80))
VOCAB, DIM, LENGTH, BATCH = (200, 32, 16, 2) if TINY else (30_522, 768, 256, 32)
TEMPERATURE, ALPHA_CE, ALPHA_MLM, ALPHA_COS = 2.0, 5.0, 2.0, 1.0
random.seed(56)
torch.manual_seed(56)


class Accelerator:
    """As much of such a library as this script needs."""

    def __init__(self, mixed_precision="no", gradient_accumulation_steps=1):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = {"no": None, "bf16": torch.bfloat16}[mixed_precision]
        self.accumulation, self.count, self.sync_gradients = gradient_accumulation_steps, 0, True

    def prepare(self, *things):
        return [self._prepare(thing) for thing in things]

    def _prepare(self, thing):
        if isinstance(thing, nn.Module):
            return thing.to(self.device)
        return Shard(thing, self.device) if isinstance(thing, DataLoader) else thing

    def autocast(self):
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    @contextlib.contextmanager
    def accumulate(self):
        self.count += 1
        self.sync_gradients = self.count % self.accumulation == 0
        yield

    def backward(self, loss):
        (loss / self.accumulation).backward()

    def clip_grad_norm_(self, parameters, norm):
        return nn.utils.clip_grad_norm_(parameters, norm) if self.sync_gradients else None


class Shard:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        for batch in self.loader:
            yield {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}


class Bert(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, DIM // (8 if TINY else 64), 4 * DIM, 0.1, "gelu", batch_first=True
        )
        self.norm, self.encoder = (
            nn.LayerNorm(DIM),
            nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        )
        self.transform, self.bias = nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(VOCAB))
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids, mask):
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        x = self.encoder(x, src_key_padding_mask=mask == 0)
        return F.linear(F.gelu(self.transform(x)), self.words.weight, self.bias), x


def collate(rows):
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for kept, row in zip(ids, rows, strict=True):
        kept[: len(row)] = row
    mask = (ids != 0).long()
    chosen = (torch.rand(ids.shape) < 0.15) & mask.bool()
    return {"ids": ids.masked_fill(chosen, 3), "mask": mask, "labels": ids.masked_fill(~chosen, -100)}


class Distiller:
    def __init__(self, accelerator, student, teacher, optimizer):
        self.accelerator, self.student, self.teacher = accelerator, student, teacher.eval()
        self.optimizer, self.last = optimizer, {}
        if "bf16-teacher" in FIX:
            self.teacher.to(torch.bfloat16)

    def select(self, logits, hidden, mask):
        """Logits and hidden states at the words, without the padding."""
        if "select-rows" in FIX:
            rows = mask.flatten().nonzero().flatten()
            return logits.flatten(0, 1).index_select(0, rows), hidden.flatten(0, 1).index_select(0, rows)
        at = mask.bool().unsqueeze(-1)
        logits = torch.masked_select(logits, at.expand_as(logits)).view(-1, VOCAB)
        return logits, torch.masked_select(hidden, at.expand_as(hidden)).view(-1, DIM)

    def step(self, ids, mask, labels):
        with self.accelerator.accumulate(), self.accelerator.autocast():
            with torch.no_grad():
                t_logits, t_hidden = self.teacher(ids, mask)
            s_logits, s_hidden = self.student(ids, mask)
            s_chosen, s_states = self.select(s_logits, s_hidden, mask)
            t_chosen, t_states = self.select(t_logits, t_hidden, mask)
            loss_ce = F.kl_div(
                F.log_softmax(s_chosen / TEMPERATURE, -1),
                F.softmax(t_chosen / TEMPERATURE, -1),
                reduction="batchmean",
            )
            loss_mlm = F.cross_entropy(s_logits.view(-1, VOCAB), labels.view(-1))
            loss_cos = 1 - F.cosine_similarity(s_states, t_states, dim=-1).mean()
            loss = ALPHA_CE * TEMPERATURE**2 * loss_ce + ALPHA_MLM * loss_mlm + ALPHA_COS * loss_cos
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.student.parameters(), 5.0)
        if self.accelerator.sync_gradients:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"loss": loss.detach(), "ce": loss_ce.detach(), "mlm": loss_mlm.detach()}

    def train(self, loader):
        began = None
        for step, batch in enumerate(loader):
            losses = self.step(**batch)
            if step % 20 == 0 or step == MAX_STEPS - 1:
                self.last = {name: value.item() for name, value in losses.items()}
                print(step, {name: round(value, 4) for name, value in self.last.items()})
            if step == MAX_STEPS // 4:
                losses["loss"].item()
                began = time.time()
        return (time.time() - began) / (MAX_STEPS - 1 - MAX_STEPS // 4)


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    texts = [torch.randint(4, VOCAB, (random.randint(LENGTH // 2, LENGTH),)) for _ in range(512)]
    texts = (texts * (MAX_STEPS * BATCH // len(texts) + 1))[: MAX_STEPS * BATCH]
    loader = DataLoader(texts, BATCH, collate_fn=collate, num_workers=0 if TINY else 4, pin_memory=not TINY)
    with accelerator.device:
        student, teacher = Bert(2 if TINY else 6), Bert(3 if TINY else 12)
    student, teacher, loader = accelerator.prepare(student, teacher, loader)
    optimizer = torch.optim.AdamW(student.parameters(), 5e-4, fused=True)
    seconds = Distiller(accelerator, student, teacher, optimizer).train(loader)
    print(f"{1 / seconds:.5f} it/s")


if __name__ == "__main__":
    main()
