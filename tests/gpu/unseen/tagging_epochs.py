"""Tag words in sentences; a data set small enough that an epoch takes a second."""

import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = max(2, int(os.environ.get("STEPS", 2 if TINY else 30)))
SENTENCES, BATCH, DIM, LAYERS = (64, 8, 32, 1) if TINY else (5120, 128, 512, 6)
VOCAB, TAGS, LETTERS, LONGEST_WORD = 20_000, 17, 60, 12
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)


class Sentences(Dataset):
    def __init__(self, count):
        self.items = []
        for _ in range(count):
            length = random.randint(5, 60)
            words = [random.randrange(1, VOCAB) for _ in range(length)]
            letters = [
                [random.randrange(1, LETTERS) for _ in range(random.randint(1, LONGEST_WORD))] for _ in words
            ]
            self.items.append({"words": words, "letters": letters, "tags": [w % TAGS for w in words]})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    longest = max(len(item["words"]) for item in batch)
    words, letters, tags = [], [], []
    for item in batch:
        missing = longest - len(item["words"])
        words.append(item["words"] + [0] * missing)
        tags.append(item["tags"] + [-100] * missing)
        spelled = [word + [0] * (LONGEST_WORD - len(word)) for word in item["letters"]]
        letters.append(spelled + [[0] * LONGEST_WORD] * missing)
    return {"words": torch.tensor(words), "letters": torch.tensor(letters), "tags": torch.tensor(tags)}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.letters = nn.Embedding(VOCAB, DIM // 2), nn.Embedding(LETTERS, 32)
        self.spelling = nn.Conv1d(32, DIM // 2, 3, padding=1)
        layer = nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.tag = nn.Linear(DIM, TAGS)

    def forward(self, words, letters):
        b, n, c = letters.shape
        spelled = self.spelling(self.letters(letters).view(b * n, c, 32).transpose(1, 2)).amax(2)
        x = torch.cat([self.words(words), spelled.view(b, n, -1)], 2)
        return self.tag(self.encoder(x, src_key_padding_mask=words == 0))


data = Sentences(SENTENCES)
loader = DataLoader(
    data,
    BATCH,
    shuffle=True,
    collate_fn=collate,
    num_workers=2 if TINY else 8,
    persistent_workers="persistent" in FIX,
    pin_memory="pinned" in FIX,
)
model = Tagger().to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True if "fused" in FIX else None)
epoch_times = []
for epoch in range(EPOCHS):
    began = time.time()
    total, correct, counted = 0.0, 0, 0
    for batch in loader:
        batch = {key: value.to(device) for key, value in batch.items()}
        logits = model(batch["words"], batch["letters"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        kept = batch["tags"] != -100
        correct += (logits.argmax(2)[kept] == batch["tags"][kept]).sum().item()
        counted += kept.sum().item()
    epoch_times.append(time.time() - began)
    loss, accuracy = total / len(loader), correct / counted
    print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.4f} in {epoch_times[-1]:.3f} s")
mean = sum(epoch_times[1:]) / (EPOCHS - 1)
print(f"an epoch takes {mean:.4f} s, a step {mean / len(loader) * 1e3:.3f} ms")
