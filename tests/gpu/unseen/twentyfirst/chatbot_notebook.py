"""A chatbot from lines of films, with attention, which learns to answer word by word. From a notebook."""

# %% What is needed
import itertools
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 120))
PAIRS, WORDS, BATCH, LONGEST, HIDDEN, LAYERS = (
    (60, 50, 6, 6, 16, 2) if TINY else (50000, 7826, 64, 20, 500, 2)
)
PAD, SOS, EOS, CLIP = 0, 1, 2, 50.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)

# %% Lines and their answers, as numbers of words
pairs = []
for _ in range(PAIRS):
    line = [random.randrange(3, WORDS) for _ in range(random.randint(3, LONGEST - 1))]
    pairs.append((line, [(7 * word) % (WORDS - 3) + 3 for word in line[::-1]]))


# %% Batches: time first, longest lines first
def zero_padded(lists):
    return torch.tensor(list(itertools.zip_longest(*lists, fillvalue=PAD)))


def batch_of(chosen):
    chosen.sort(key=lambda pair: len(pair[0]), reverse=True)
    lines, answers = ([one[i] + [EOS] for one in chosen] for i in (0, 1))
    lengths, answers = torch.tensor([len(line) for line in lines]), zero_padded(answers)
    return zero_padded(lines).to(device), lengths, answers.to(device), (answers != PAD).to(device)


# %% Networks
class Encoder(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.gru = embedding, nn.GRU(HIDDEN, HIDDEN, LAYERS, bidirectional=True)

    def forward(self, lines, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(lines), lengths)
        out, hidden = self.gru(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out)
        return out[:, :, :HIDDEN] + out[:, :, HIDDEN:], hidden[:LAYERS].contiguous()


class Decoder(nn.Module):
    """Luong's: attention looks at where the GRU is, and does not lead back into it."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.gru = embedding, nn.GRU(HIDDEN, HIDDEN, LAYERS)
        self.concat, self.out = nn.Linear(2 * HIDDEN, HIDDEN), nn.Linear(HIDDEN, WORDS)

    def forward(self, words, hidden, heard):
        """Of one word of each answer, or of all."""
        rnn, hidden = self.gru(self.embedding(words), hidden)
        if len(words) == 1:
            weights = F.softmax((rnn * heard).sum(2).t(), dim=1)[:, None]
            context = weights.bmm(heard.transpose(0, 1)).transpose(0, 1)
        else:
            keys = heard.transpose(0, 1)
            weights = F.softmax(rnn.transpose(0, 1) @ keys.transpose(1, 2), dim=2)
            context = (weights @ keys).transpose(0, 1)
        out = self.out(torch.tanh(self.concat(torch.cat([rnn, context], 2))))
        return F.softmax(out, dim=2), hidden


embedding = nn.Embedding(WORDS, HIDDEN).to(device)
encoder, decoder = Encoder(embedding).to(device), Decoder(embedding).to(device)
optimizers = [
    torch.optim.Adam(encoder.parameters(), lr=1e-4),
    torch.optim.Adam(decoder.parameters(), lr=5e-4),
]


# %% The loss of one word
def mask_nll_loss(chances, targets, mask):
    n_total = mask.sum()
    entropy = -torch.log(torch.gather(chances, 1, targets[:, None])[:, 0])
    loss = entropy.masked_select(mask).mean()
    return loss, n_total.item()


# %% One step
def train(lines, lengths, targets, mask):
    for optimizer in optimizers:
        optimizer.zero_grad()
    heard, hidden = encoder(lines, lengths)
    sos = torch.full((1, BATCH), SOS, device=device)
    loss, losses, n_totals = 0, [], 0
    if "words-at-once" in FIX:
        chances, _ = decoder(torch.cat([sos, targets[:-1]]), hidden, heard)
        entropy = -torch.log(chances.gather(2, targets[..., None])[..., 0])
        of_words, counts = (entropy * mask).sum(1), mask.sum(1)
        loss = (of_words / counts).sum()
        shown = of_words.sum() / counts.sum()
    elif "read-once" in FIX:
        words = sos
        for t in range(len(targets)):
            chances, hidden = decoder(words, hidden, heard)
            entropy = -torch.log(chances[0].gather(1, targets[t, :, None])[:, 0])
            losses.append((entropy * mask[t]).sum())
            loss = loss + losses[-1] / mask[t].sum()
            words = targets[t : t + 1]
        shown = torch.stack(losses).sum() / mask.sum()
    else:
        words = sos
        for t in range(len(targets)):
            chances, hidden = decoder(words, hidden, heard)
            words = targets[t : t + 1]  # the teacher's
            mask_loss, n_total = mask_nll_loss(chances[0], targets[t], mask[t])
            loss += mask_loss
            losses.append(mask_loss.item() * n_total)
            n_totals += n_total
        shown = sum(losses) / n_totals
    loss.backward()
    for network in (encoder, decoder):
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
    for optimizer in optimizers:
        optimizer.step()
    return float(shown.detach() if torch.is_tensor(shown) else shown)


# %% Training
lead, began, total, shown = min(STEPS // 2, 10), 0.0, 0.0, 0.0
for iteration in range(STEPS):
    if iteration == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    shown = train(*batch_of([random.choice(pairs) for _ in range(BATCH)]))
    total += shown
    if iteration % 20 == 0:
        print(f"iteration {iteration}: average loss {total / (iteration + 1):.4f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)

# %% How it went
print(f"loss {shown:.5f}; {each:.3f} ms per step")
