"""Do they like it? A trainer with mixed precision tunes an encoder on long reviews."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
SIZE, BATCH, WORDS, VOCAB, WIDE, HEAD, LAYERS, CLASSES = (
    (8, 2, 8, 50, 32, 16, 1, 3) if TINY else (128, 32, 512, 30_522, 768, 64, 12, 5)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = self.norm1(x + y)
        return self.norm2(x + self.mlp(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(WORDS, WIDE)
        self.norm, self.layers = nn.LayerNorm(WIDE), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.pool, self.last = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, CLASSES)

    def forward(self, words):
        x = self.layers(self.norm(self.words(words) + self.places.weight))
        return self.last(torch.tanh(self.pool(x[:, 0])))


class Trainer:
    """Steps, with what is usual around them; amp is on."""

    def __init__(self, model, data, amp=True):
        self.model, self.data = model, data
        self.amp = amp and device.type == "cuda"
        kept = ("bias", "norm")
        groups = [
            {
                "params": [w for n, w in model.named_parameters() if any(k in n for k in kept)],
                "weight_decay": 0,
            },
            {"params": [w for n, w in model.named_parameters() if not any(k in n for k in kept)]},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=2e-5, weight_decay=0.01, fused=device.type == "cuda")
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 100)
        self.history = []

    def autocast(self):
        return torch.autocast(device.type, torch.bfloat16, enabled=self.amp)

    def compute_loss(self, words, labels):
        if "forward-in-autocast" in FIX:
            with self.autocast():
                logits = self.model(words)
        else:
            logits = self.model(words)
        with self.autocast():
            return F.cross_entropy(logits, labels, label_smoothing=0.1)

    def gradient_norm(self):
        """For the log."""
        if "one-norm" in FIX:
            grads = [weight.grad for weight in self.model.parameters()]
            return nn.utils.get_total_norm(grads).item()
        total = 0.0
        for weight in self.model.parameters():
            total += weight.grad.norm(2).item() ** 2
        return total**0.5

    def training_step(self, words, labels):
        self.model.train()
        loss = self.compute_loss(words, labels)
        loss.backward()
        norm = self.gradient_norm()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return {"loss": loss.item(), "norm": norm, "rate": self.schedule.get_last_lr()[0]}

    def train(self):
        texts, labels = self.data
        lead, began = min(STEPS // 2, 3), 0.0
        for step in range(STEPS):
            if step == lead:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            chosen = torch.randint(SIZE, (BATCH,), device=device)
            self.history.append(self.training_step(texts[chosen], labels[chosen]))
            if step % 10 == 0:
                print({key: round(value, 6) for key, value in self.history[-1].items()})
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (STEPS - lead)


def reviews():
    """Reviews that were cut to 512 words, with one word more often where they like it more."""
    labels = torch.randint(CLASSES, (SIZE,), device=device)
    texts = torch.randint(CLASSES, VOCAB, (SIZE, WORDS), device=device)
    here = torch.rand(SIZE, WORDS, device=device) < 0.2
    return torch.where(here, labels[:, None], texts), labels


def main():
    trainer = Trainer(Classifier().to(device), reviews())
    each = trainer.train()
    last = trainer.history[-1]
    print(f"loss {last['loss']:.5f}, norm {last['norm']:.4f}; {each:.3f} ms per step")


main()
