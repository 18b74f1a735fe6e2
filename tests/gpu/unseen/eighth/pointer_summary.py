"""Summaries that may copy: a pointer-generator network with coverage, after See, Liu and Manning (2017)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 50))
VOCAB, UNKNOWN, LONG, SHORT, BATCH, EMBEDDING, HIDDEN = (
    (60, 6, 12, 5, 3, 8, 8) if TINY else (50_000, 80, 400, 100, 32, 128, 256)
)
EPS, COVERAGE = 1e-12, 1.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Articles:
    """Articles and summaries; a summary copies from its article, also words that no vocabulary has."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def batch(self):
        common = torch.rand(BATCH, LONG, generator=self.generator).pow(4) * VOCAB
        extended = common.long().clamp(min=2)
        rare = torch.rand(BATCH, LONG, generator=self.generator) < 0.05
        named = VOCAB + torch.randint(UNKNOWN, (BATCH, LONG), generator=self.generator)
        extended = torch.where(rare, named, extended)
        lengths = torch.randint(LONG * 3 // 4, LONG + 1, (BATCH,), generator=self.generator)
        lengths[0] = LONG
        places = torch.randint(LONG // 2, (BATCH, SHORT), generator=self.generator)
        target = extended.gather(1, places)
        ends = torch.randint(SHORT // 2, SHORT + 1, (BATCH,), generator=self.generator)
        mask = torch.arange(LONG) < lengths[:, None]
        said = torch.arange(SHORT) < ends[:, None]
        return [x.to(device) for x in (extended * mask, mask.float(), target * said, said.float())]


def known(words):
    """Words that are in no vocabulary are read as the unknown word."""
    return torch.where(words < VOCAB, words, 1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True, bidirectional=True)
        self.reduce_h, self.reduce_c = nn.Linear(2 * HIDDEN, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.features = nn.Linear(2 * HIDDEN, 2 * HIDDEN, bias=False)

    def forward(self, x):
        outputs, (h, c) = self.lstm(x)
        h = F.relu(self.reduce_h(h.transpose(0, 1).flatten(1)))
        c = F.relu(self.reduce_c(c.transpose(0, 1).flatten(1)))
        return outputs, self.features(outputs), (h, c)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.covered = nn.Linear(1, 2 * HIDDEN, bias=False)
        self.state, self.score = nn.Linear(2 * HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, 1, bias=False)

    def forward(self, state, outputs, features, mask, coverage):
        e = features + self.state(state)[:, None] + self.covered(coverage[:, :, None])
        scores = self.score(torch.tanh(e)).squeeze(2)
        weights = F.softmax(scores, 1) * mask
        weights = weights / weights.sum(1, keepdim=True)
        return torch.bmm(weights[:, None], outputs).squeeze(1), weights, coverage + weights


class Summarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, EMBEDDING)
        self.encoder, self.attention = Encoder(), Attention()
        self.context = nn.Linear(2 * HIDDEN + EMBEDDING, EMBEDDING)
        self.cell = nn.LSTMCell(EMBEDDING, HIDDEN)
        self.generate = nn.Linear(4 * HIDDEN + EMBEDDING, 1)
        self.out1, self.out2 = nn.Linear(3 * HIDDEN, HIDDEN), nn.Linear(HIDDEN, VOCAB)

    def step(self, word, state, context, memory, mask, coverage):
        x = self.context(torch.cat([context, self.words(word)], 1))
        state = self.cell(x, state)
        both = torch.cat(state, 1)
        context, weights, coverage = self.attention(both, *memory, mask, coverage)
        chance = torch.sigmoid(self.generate(torch.cat([context, both, x], 1)))
        hidden = self.out1(torch.cat([state[0], context], 1))
        return hidden, chance, weights, state, context, coverage

    def distribution(self, hidden, chance, weights, article):
        """Over the vocabulary and the unknown words of the articles."""
        generated = chance * F.softmax(self.out2(hidden), 1)
        extra = torch.zeros(len(article), UNKNOWN, device=article.device)
        return torch.cat([generated, extra], 1).scatter_add(1, article, (1 - chance) * weights)

    def gold(self, hidden, chance, weights, article, target):
        """The same, of the words that are asked for alone; all steps at once."""
        logits = self.out2(hidden)
        surprise = F.cross_entropy(logits.flatten(0, 1), known(target).flatten(), reduction="none")
        generated = chance.squeeze(2) * torch.exp(-surprise).view_as(target) * (target < VOCAB)
        copied = (weights * (article[:, None] == target[:, :, None])).sum(2)
        return generated + (1 - chance.squeeze(2)) * copied

    def forward(self, article, mask, target, said):
        outputs, features, state = self.encoder(self.words(known(article)))
        context = outputs.new_zeros(len(article), 2 * HIDDEN)
        coverage, word = torch.zeros_like(mask), torch.zeros_like(target[:, 0])
        losses, kept = [], []
        for t in range(target.size(1)):
            before = coverage
            hidden, chance, weights, state, context, coverage = self.step(
                word, state, context, (outputs, features), mask, coverage
            )
            seen_twice = COVERAGE * torch.minimum(weights, before).sum(1)
            if "gold-only" in FIX:
                kept.append((hidden, chance, weights))
                losses.append(seen_twice * said[:, t])
            else:
                probabilities = self.distribution(hidden, chance, weights, article)
                gold = probabilities.gather(1, target[:, t, None]).squeeze(1)
                losses.append((seen_twice - torch.log(gold + EPS)) * said[:, t])
            word = known(target[:, t])
        total = torch.stack(losses, 1).sum(1)
        if kept:
            stacked = [torch.stack(one, 1) for one in zip(*kept, strict=True)]
            gold = self.gold(*stacked, article, target)
            total = total - (torch.log(gold + EPS) * said).sum(1)
        return (total / said.sum(1)).mean()


def main():
    data, model = Articles(), Summarizer().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.15, initial_accumulator_value=0.1)
    running, times = 0.0, []
    for step in range(STEPS):
        began = time.perf_counter()
        article, mask, target, said = data.batch()
        optimizer.zero_grad()
        loss = model(article, mask, target, said)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step == STEPS - 1:
            running = loss.item() if running == 0 else 0.99 * running + 0.01 * loss.item()
        if step % 20 == 0:
            print(f"step {step}: running loss {running:.4f}")
        times.append(time.perf_counter() - began)
    kept = times[min(STEPS // 2, 3) :]
    print(f"loss {loss.item():.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")


main()
