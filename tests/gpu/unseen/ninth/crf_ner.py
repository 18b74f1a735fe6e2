"""Names in texts: a bidirectional LSTM over words and a conditional random field over their tags."""

import os
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 80))
WARM = min(STEPS // 2, 4)
SENTENCES, WORDS, TAGS, BATCH, LONGEST, WIDTH, HIDDEN = (
    (20, 50, 5, 4, 8, 8, 8) if TINY else (2000, 20_000, 17, 24, 32, 100, 256)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def clock():
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class CRF(nn.Module):
    """Scores of whole sequences of tags: how well they follow each other, and fit the words."""

    def __init__(self):
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(TAGS, TAGS))
        self.start, self.stop = nn.Parameter(0.1 * torch.randn(TAGS)), nn.Parameter(0.1 * torch.randn(TAGS))

    def partition(self, emissions):
        """All sequences of tags of one sentence: the forward algorithm."""
        alpha = self.start + emissions[0]
        for emission in emissions[1:]:
            alpha = torch.logsumexp(alpha[:, None] + self.transitions, 0) + emission
        return torch.logsumexp(alpha + self.stop, 0)

    def partitions(self, emissions, lengths):
        """The same of all sentences of a batch."""
        alpha = self.start + emissions[:, 0]
        for place in range(1, emissions.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + emissions[:, place]
            alpha = torch.where((place < lengths)[:, None], new, alpha)
        return torch.logsumexp(alpha + self.stop, 1)

    def score(self, emissions, tags, mask):
        """The given tags of all sentences."""
        fits = emissions.gather(2, tags[:, :, None]).squeeze(2)
        follows = self.transitions[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        inner = (fits * mask).sum(1) + (follows * mask[:, 1:]).sum(1)
        return self.start[tags[:, 0]] + inner + self.stop[last]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.out, self.crf = nn.Linear(2 * HIDDEN, TAGS), CRF()

    def loss(self, words, tags, lengths, mask):
        emissions = self.out(self.lstm(self.embedding(words))[0])
        if "sentences-together" in FIX:
            partition = self.crf.partitions(emissions, mask.sum(1))
        else:
            partition = torch.stack(
                [
                    self.crf.partition(emission[:length])
                    for emission, length in zip(emissions, lengths, strict=True)
                ]
            )
        return (partition - self.crf.score(emissions, tags, mask)).mean()


generator = torch.Generator().manual_seed(1)
lengths_of = torch.randint(LONGEST // 4, LONGEST + 1, (SENTENCES,), generator=generator).tolist()
words_of = [torch.randint(0, WORDS, (length,), generator=generator) for length in lengths_of]
tags_of = [words % TAGS for words in words_of]
model = Tagger().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
shown = 0.0
for step in range(STEPS):
    if step == WARM:
        began = clock()
    chosen = torch.randint(0, SENTENCES, (BATCH,), generator=generator).tolist()
    lengths = [lengths_of[i] for i in chosen]
    words = pad_sequence([words_of[i] for i in chosen], batch_first=True).to(device)
    tags = pad_sequence([tags_of[i] for i in chosen], batch_first=True).to(device)
    mask = (torch.arange(words.shape[1])[None] < torch.tensor(lengths)[:, None]).to(device)
    loss = model.loss(words, tags, lengths, mask)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
        shown = loss.item()
each = 1e3 * (clock() - began) / (STEPS - WARM)
print(f"loss {shown:.5f}; {each:.3f} ms per step")
