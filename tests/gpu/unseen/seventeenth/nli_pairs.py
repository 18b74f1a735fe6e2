"""Does the second sentence follow from the first? An encoder is fine-tuned on pairs by a small trainer."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
PAIRS, BATCH, MOST, WORDS, WIDE, LAYERS, HEAD = (
    (32, 4, 32, 50, 32, 1, 16) if TINY else (20_000, 64, 256, 50_265, 768, 12, 64)
)
PAD, BEGIN, END, KINDS = 1, 0, 2, 3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


@dataclass
class Arguments:
    max_steps: int = STEPS
    batch: int = BATCH
    learning_rate: float = 2e-5
    warmup: float = 0.06
    logging_steps: int = 20 if "loss-rarely" in FIX else 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(MOST, WIDE)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.dense, self.out = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, KINDS)

    def forward(self, input_ids, attention_mask, labels):
        x = self.norm(self.words(input_ids) + self.places.weight[: input_ids.shape[1]])
        mask = attention_mask[:, None, None].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return F.cross_entropy(self.out(torch.tanh(self.dense(x[:, 0]))).float(), labels)


def tokenized():
    """Pairs of 12 to 70 words, each as long as the model can read."""
    lengths = (12 + 12 * torch.randn(PAIRS).exp()).clamp(max=min(70, MOST)).int()
    there = torch.arange(MOST) < lengths[:, None]
    labels = torch.randint(KINDS, (PAIRS,))
    words = torch.randint(3, WORDS // 2, (PAIRS, MOST)) + (WORDS // 7) * labels[:, None]
    words[:, 0] = BEGIN
    words[torch.arange(PAIRS), lengths - 1] = END
    return {"input_ids": words.masked_fill(~there, PAD), "attention_mask": there.long(), "labels": labels}


class Trainer:
    def __init__(self, model, arguments, data):
        self.model, self.arguments, self.data = model, arguments, data
        self.optimizer = torch.optim.AdamW(model.parameters(), arguments.learning_rate, fused=low)
        warm = max(1, int(arguments.warmup * arguments.max_steps))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / warm)
        )
        self.log = []

    def batches(self):
        generator = torch.Generator().manual_seed(1)
        while True:
            order = torch.randperm(PAIRS, generator=generator)
            for chosen in order.split(self.arguments.batch):
                if len(chosen) == self.arguments.batch:
                    yield self.collate({name: values[chosen] for name, values in self.data.items()})

    def collate(self, batch):
        if "longest" in FIX:
            longest = -(-int(batch["attention_mask"].sum(1).max()) // 8) * 8
            for name in ("input_ids", "attention_mask"):
                batch[name] = batch[name][:, :longest].contiguous()
        if low:
            batch = {name: values.pin_memory() for name, values in batch.items()}
        return {name: values.to(device, non_blocking=True) for name, values in batch.items()}

    def training_step(self, batch):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            loss = self.model(**batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def train(self):
        self.model.train()
        steps, batches = self.arguments.max_steps, self.batches()
        lead, began = min(steps // 2, 6), 0.0
        for step in range(steps):
            if step == lead:
                if low:
                    torch.cuda.synchronize()
                began = time.perf_counter()
            loss = self.training_step(next(batches))
            if step % self.arguments.logging_steps == 0 or step == steps - 1:
                self.log.append({"step": step, "loss": loss.item(), "rate": self.schedule.get_last_lr()[0]})
            if step % 50 == 0:
                print(self.log[-1])
        if low:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (steps - lead)


with device:
    classifier = Classifier()
trainer = Trainer(classifier, Arguments(), tokenized())
each = trainer.train()
print(f"loss {trainer.log[-1]['loss']:.5f}; {each:.3f} ms per step")
