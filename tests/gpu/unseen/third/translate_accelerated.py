"""Train a translation model with a small accelerator of our own: prepare, autocast, backward."""

import itertools
import os
import random
import re
import time
import unicodedata
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
PAIRS, BATCH, D, LAYERS = (16, 4, 32, 1) if TINY else (1536, 64, 512, 6)
WORDS, PIECES, PAD, BOS, EOS = (6, 40, 0, 1, 2) if TINY else (24, 400, 0, 1, 2)
random.seed(5)
torch.manual_seed(5)


class Accelerator:
    """Place what a script trains: the device, mixed precision, batches."""

    def __init__(self, mixed_precision="no"):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.mixed_precision = mixed_precision

    def prepare(self, model, loader):
        return model.to(self.device), PlacedLoader(loader, self.device)

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed_precision == "bf16")

    def backward(self, loss, parameters, clip):
        loss.backward()
        return torch.nn.utils.clip_grad_norm_(parameters, clip)


class PlacedLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        for batch in self.loader:
            yield {key: value.to(self.device) for key, value in batch.items()}


class SubwordTokenizer:
    """Byte-pair encoding after Sennrich: merge the most frequent pair of pieces, again and again."""

    def __init__(self, corpus, merges):
        words = Counter(word for text in corpus for word in self.split(text))
        spelled = {word: [*word, "</w>"] for word in words}
        self.ranks = {}
        for rank in range(merges):
            pairs = Counter()
            for word, pieces in spelled.items():
                for pair in itertools.pairwise(pieces):
                    pairs[pair] += words[word]
            if not pairs:
                break
            best = max(pairs, key=pairs.get)
            self.ranks[best] = rank
            spelled = {word: self.merged(pieces, best) for word, pieces in spelled.items()}
        pieces = {chr(c) for c in range(97, 123)} | {"</w>"} | {a + b for a, b in self.ranks}
        self.ids = {piece: i + 3 for i, piece in enumerate(sorted(pieces))}

    def __len__(self):
        return len(self.ids) + 3

    def split(self, text):
        text = unicodedata.normalize("NFKC", text).lower().strip()
        return re.findall(r"[a-z]+", text)

    def merged(self, pieces, pair):
        out, i = [], 0
        while i < len(pieces):
            if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == pair:
                out.append(pieces[i] + pieces[i + 1])
                i += 2
            else:
                out.append(pieces[i])
                i += 1
        return out

    def encode(self, text):
        ids = []
        for word in self.split(text):
            pieces = [*word, "</w>"]
            while len(pieces) > 1:
                pairs = set(itertools.pairwise(pieces))
                best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 30))
                if best not in self.ranks:
                    break
                pieces = self.merged(pieces, best)
            ids += [self.ids[piece] for piece in pieces]
        return [BOS, *ids, EOS]


class Pairs(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts, self.tokenizer, self.encoded = texts, tokenizer, None
        if "tokenised-once" in FIX:
            self.encoded = [tuple(map(tokenizer.encode, pair)) for pair in texts]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        if self.encoded:
            return self.encoded[i]
        return tuple(self.tokenizer.encode(text) for text in self.texts[i])


def collate(pairs):
    sources, targets = ([torch.tensor(ids) for ids in side] for side in zip(*pairs, strict=True))
    pad = nn.utils.rnn.pad_sequence
    return {"source": pad(sources, True, PAD), "target": pad(targets, True, PAD)}


class Translator(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, D, padding_idx=PAD), nn.Embedding(512, D)
        self.transformer = nn.Transformer(D, 8, LAYERS, LAYERS, 4 * D, 0.1, batch_first=True)
        self.head = nn.Linear(D, vocabulary)

    def embedded(self, ids):
        return self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        y = self.transformer(self.embedded(source), self.embedded(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(y)


def sentences(count):
    lexicon = [
        "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 11))) for _ in range(900)
    ]
    for _ in range(count):
        words = random.choices(lexicon, k=random.randint(WORDS // 2, WORDS))
        yield " ".join(words).capitalize() + ".", " ".join(word[::-1] for word in words).capitalize() + "."


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    texts = list(sentences(PAIRS))
    tokenizer = SubwordTokenizer([text for pair in texts[:30] for text in pair], PIECES // 2)
    workers = {"num_workers": 6, "persistent_workers": True} if "workers" in FIX and not TINY else {}
    loader = DataLoader(Pairs(texts, tokenizer), BATCH, shuffle=True, collate_fn=collate, **workers)
    model = Translator(len(tokenizer))
    model, loader = accelerator.prepare(model, loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    done, warm = 0, STEPS // 4
    while done < STEPS:
        for batch in loader:
            if done == warm:
                start = time.time()
            with accelerator.autocast():
                logits = model(batch["source"], batch["target"][:, :-1])
            loss = F.cross_entropy(
                logits.float().flatten(0, 1), batch["target"][:, 1:].flatten(), ignore_index=PAD
            )
            accelerator.backward(loss, model.parameters(), clip=1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % 20 == 0:
                print(f"step {done}: loss {loss.item():.4f}")
            if done == STEPS:
                break
    final = loss.item()
    print(f"loss {final:.4f}, {1e3 * (time.time() - start) / (STEPS - warm):.3f} ms per step")


if __name__ == "__main__":
    main()
