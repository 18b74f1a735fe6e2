# %% [markdown]
# # Word2Vec with negative sampling
# Skip-gram: from a word, predict the words around it (Mikolov et al.). Words and neighbours are embedded
# separately; for every pair we draw a few *noise* words that should be unlikely.

# %%
import os
import random
import time

import numpy as np
import torch
from torch import nn, optim

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 150))
VOCAB, TOKENS, EMBED, BATCH, WINDOW, SAMPLES = (
    (50, 2000, 8, 16, 5, 5) if TINY else (63_641, 400_000, 300, 512, 5, 5)
)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
np.random.seed(0)
random.seed(0)

# %% [markdown]
# ## The text
# Words are numbers by frequency already. Frequent ones are dropped with probability $1 - \sqrt{t / f(w)}$.

# %%
frequency = 1 / np.arange(1, VOCAB + 1)
frequency /= frequency.sum()
int_words = np.random.choice(VOCAB, TOKENS, p=frequency)
threshold = 1e-2 if TINY else 1e-5
p_drop = 1 - np.sqrt(threshold / frequency)
train_words = int_words[np.random.rand(TOKENS) > p_drop[int_words]].tolist()
unigram_dist = frequency
noise_dist = torch.from_numpy(unigram_dist**0.75 / np.sum(unigram_dist**0.75)).float()
print(f"{len(train_words)} words are left")

# %% [markdown]
# ## Batches
# Around each word a window of random size, as in the paper: closer words matter more.


# %%
def get_target(words, idx, window_size=5):
    R = np.random.randint(1, window_size + 1)
    start = idx - R if (idx - R) > 0 else 0
    stop = idx + R
    target_words = words[start:idx] + words[idx + 1 : stop + 1]
    return list(target_words)


def get_batches(words, batch_size, window_size=5):
    n_batches = len(words) // batch_size
    words = words[: n_batches * batch_size]
    for idx in range(0, len(words), batch_size):
        x, y = [], []
        batch = words[idx : idx + batch_size]
        for ii in range(len(batch)):
            batch_x = batch[ii]
            batch_y = get_target(batch, ii, window_size)
            y.extend(batch_y)
            x.extend([batch_x] * len(batch_y))
        yield x, y


def get_batches_at_once(words, batch_size, window_size=5):
    """The same batches without a loop over words: all offsets, then those within the window."""
    words = torch.tensor(words, device=device)
    offsets = torch.tensor([o for o in range(-window_size, window_size + 1) if o], device=device)
    place = torch.arange(batch_size, device=device)
    inside = (place[:, None] + offsets >= 0) & (place[:, None] + offsets < batch_size)
    for batch in words.split(batch_size)[: len(words) // batch_size]:
        R = torch.randint(1, window_size + 1, (batch_size, 1), device=device)
        row, column = (inside & (offsets.abs() <= R)).nonzero(as_tuple=True)
        yield batch[row], batch[row + offsets[column]]


# %% [markdown]
# ## Model and loss


# %%
class SkipGramNeg(nn.Module):
    def __init__(self, n_vocab, n_embed, noise_dist=None):
        super().__init__()
        self.n_vocab, self.n_embed, self.noise_dist = n_vocab, n_embed, noise_dist
        self.in_embed, self.out_embed = nn.Embedding(n_vocab, n_embed), nn.Embedding(n_vocab, n_embed)
        self.in_embed.weight.data.uniform_(-1, 1)
        self.out_embed.weight.data.uniform_(-1, 1)

    def forward_input(self, input_words):
        return self.in_embed(input_words)

    def forward_output(self, output_words):
        return self.out_embed(output_words)

    def forward_noise(self, batch_size, n_samples):
        noise_words = torch.multinomial(self.noise_dist, batch_size * n_samples, replacement=True)
        noise_words = noise_words.to(self.out_embed.weight.device)
        return self.out_embed(noise_words).view(batch_size, n_samples, self.n_embed)


class NegativeSamplingLoss(nn.Module):
    def forward(self, input_vectors, output_vectors, noise_vectors):
        batch_size, embed_size = input_vectors.shape
        input_vectors = input_vectors.view(batch_size, embed_size, 1)
        output_vectors = output_vectors.view(batch_size, 1, embed_size)
        out_loss = torch.bmm(output_vectors, input_vectors).sigmoid().log().squeeze()
        noise_loss = torch.bmm(noise_vectors.neg(), input_vectors).sigmoid().log()
        return -(out_loss + noise_loss.squeeze().sum(1)).mean()


# %% [markdown]
# ## Training

# %%
model = SkipGramNeg(VOCAB, EMBED, noise_dist.to(device) if "noise-on-device" in FIX else noise_dist).to(
    device
)
criterion = NegativeSamplingLoss()
optimizer = optim.Adam(model.parameters(), lr=0.003)
steps, losses, start = 0, [], time.time()
while steps < STEPS:
    batches = get_batches_at_once if "pairs-at-once" in FIX else get_batches
    for input_words, target_words in batches(train_words, BATCH, WINDOW):
        steps += 1
        if "pairs-at-once" in FIX:
            inputs, targets = input_words, target_words
        else:
            inputs, targets = torch.LongTensor(input_words), torch.LongTensor(target_words)
            inputs, targets = inputs.to(device), targets.to(device)
        input_vectors = model.forward_input(inputs)
        output_vectors = model.forward_output(targets)
        noise_vectors = model.forward_noise(inputs.shape[0], SAMPLES)
        loss = criterion(input_vectors, output_vectors, noise_vectors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if steps == max(1, STEPS // 5):
            start, since = time.time(), steps
        if steps % 100 == 0:
            print(f"step {steps}: loss {np.mean(losses[-100:]):.4f}")
        if steps == STEPS:
            break
elapsed = time.time() - start

# %%
with torch.no_grad():
    weights = nn.functional.normalize(model.in_embed.weight, dim=1)
    nearest = (weights[:16] @ weights.T).topk(6).indices.cpu().numpy()
print("nearest to the most frequent word:", nearest[0, 1:])
print(f"loss {np.mean(losses[-20:]):.4f}; {1e3 * elapsed / (steps - since):.3f} ms per batch")
