"""What is odd in the log of a machine? A small BERT learns to foresee events that are masked."""

import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
SESSIONS, BATCH, LONGEST, EVENTS, WIDTH, HEADS, LAYERS = (
    (64, 4, 12, 20, 16, 2, 2) if TINY else (8192, 128, 512, 1200, 256, 4, 4)
)
SPECIAL = ["<pad>", "<unk>", "<mask>", "<sos>", "<eos>"]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Vocabulary:
    def __init__(self, names):
        self.itos = SPECIAL + names
        self.stoi = {name: i for i, name in enumerate(self.itos)}
        self.pad, self.unk, self.mask, self.sos, self.eos = range(len(SPECIAL))


class LogDataset(Dataset):
    """Sessions of events by name, some of which are masked."""

    def __init__(self, sessions, vocabulary, mask_ratio=0.3):
        self.sessions, self.vocabulary, self.mask_ratio = sessions, vocabulary, mask_ratio

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, index):
        keys, labels = self.random_item(self.sessions[index], random.Random(index))
        keys, labels = [self.vocabulary.sos, *keys], [self.vocabulary.pad, *labels]
        missing = LONGEST - len(keys)
        keys.extend([self.vocabulary.pad] * missing)
        labels.extend([self.vocabulary.pad] * missing)
        return {"keys": torch.tensor(keys), "labels": torch.tensor(labels)}

    def random_item(self, session, rng):
        tokens, labels = list(session)[: LONGEST - 1], []
        for i, token in enumerate(tokens):
            chance = rng.random()
            if chance < self.mask_ratio:
                chance /= self.mask_ratio
                if chance < 0.8:
                    tokens[i] = self.vocabulary.mask
                elif chance < 0.9:
                    tokens[i] = rng.randrange(len(self.vocabulary.itos))
                else:
                    tokens[i] = self.vocabulary.stoi.get(token, self.vocabulary.unk)
                labels.append(self.vocabulary.stoi.get(token, self.vocabulary.unk))
            else:
                tokens[i] = self.vocabulary.stoi.get(token, self.vocabulary.unk)
                labels.append(self.vocabulary.pad)
        return tokens, labels


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class LogBert(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.keys, self.places = nn.Embedding(size, WIDTH, padding_idx=0), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, size)

    def forward(self, keys):
        x = self.keys(keys) + self.places.weight[: keys.shape[1]]
        x = self.norm(self.layers(x))
        return self.head(x), x[:, 0]


def sessions(vocabulary):
    """Machines do the same things in nearly the same order."""
    rng = random.Random(1)
    routines = [[rng.choice(vocabulary.itos[5:]) for _ in range(LONGEST // 4)] for _ in range(64)]
    found = []
    for _ in range(SESSIONS):
        events = []
        while len(events) < LONGEST - 1:
            events += rng.choice(routines)
        found.append(events[: LONGEST - 1])
    return found


def loader_of(dataset):
    workers = 2 if TINY else 8
    generator = torch.Generator().manual_seed(0)
    more = {"num_workers": workers, "persistent_workers": True} if "workers" in FIX else {}
    return DataLoader(
        dataset, BATCH, shuffle=True, drop_last=True, pin_memory=low, generator=generator, **more
    )


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=low)
        self.center = torch.zeros(WIDTH, device=device)
        self.shown = 0.0

    def iteration(self, step, data):
        keys, labels = (data[name].to(device, non_blocking=True) for name in ("keys", "labels"))
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            logits, whole = self.model(keys)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)
        loss = loss + 0.1 * (whole.float() - self.center).square().sum(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.center = 0.99 * self.center + 0.01 * whole.detach().float().mean(0)
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            self.shown = loss.item()

    def train(self):
        step, lead, began = 0, min(STEPS // 2, 6), 0.0
        while step < STEPS:
            for data in self.loader:
                if step == lead:
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    began = time.perf_counter()
                self.iteration(step, data)
                if step % 20 == 0:
                    print(f"step {step}: loss {self.shown:.4f}")
                step += 1
                if step == STEPS:
                    break
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / (STEPS - lead)


def main():
    vocabulary = Vocabulary([f"E{i}" for i in range(EVENTS)])
    dataset = LogDataset(sessions(vocabulary), vocabulary)
    trainer = Trainer(LogBert(len(vocabulary.itos)).to(device), loader_of(dataset))
    each = trainer.train()
    print(f"loss {trainer.shown:.5f}; {each:.3f} ms per step")


if __name__ == "__main__":
    main()
