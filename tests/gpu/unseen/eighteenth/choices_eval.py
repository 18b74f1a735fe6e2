"""How does the story go on? The likeliest of four endings is what the model answers."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 200))  # questions
KNOWN, STORY, ENDING, ENDINGS, TOGETHER, VOCAB, WIDE, LAYERS, HEAD = (
    (8, (5, 9), (2, 5), 4, 2, 60, 32, 2, 16)
    if TINY
    else (512, (60, 140), (10, 40), 4, 32, 50_304, 1024, 24, 64)
)
LENGTH = STORY[1] + ENDING[1]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers, self.norm = nn.ModuleList(DecoderLayer() for _ in range(LAYERS)), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def questions():
    """Stories, their endings and which of these is right, as a tokenizer leaves them: lists of numbers."""
    rng, found = torch.Generator().manual_seed(0), []
    for _ in range(KNOWN):
        story, *counts = (
            torch.randint(*span, (1,), generator=rng).item() for span in (STORY, *[ENDING] * ENDINGS)
        )
        texts = [torch.randint(2, VOCAB, (count,), generator=rng).tolist() for count in (story, *counts)]
        found.append((texts[0], texts[1:], torch.randint(ENDINGS, (1,), generator=rng).item()))
    return found


def score(model, story, ending):
    """The mean likelihood of the words of an ending."""
    words = torch.tensor([story + ending]).to(device)
    chances = model(words[:, :-1]).float().log_softmax(-1)
    each = chances.gather(2, words[:, 1:, None])[0, len(story) - 1 :, 0]
    return each.mean() if "likelihoods-at-end" in FIX else each.mean().item()


def ask(model, question):
    story, endings, _ = question
    scores = [score(model, story, ending) for ending in endings]
    return torch.stack(scores).tolist() if "likelihoods-at-end" in FIX else scores


def ask_many(model, asked):
    """All endings of many questions in one batch, padded on the right, with logits of the endings alone."""
    texts = [(len(story), story + ending) for story, endings, _ in asked for ending in endings]
    longest = max(len(text) for _, text in texts)
    words = torch.zeros(len(texts), longest, dtype=torch.long)
    for i, (_, text) in enumerate(texts):
        words[i, : len(text)] = torch.tensor(text)
    starts = torch.tensor([start for start, _ in texts])
    counts = torch.tensor([len(text) for _, text in texts]) - starts
    rows = torch.arange(len(texts)).repeat_interleave(counts)
    places = torch.cat([torch.arange(start, len(text)) for start, text in texts])
    words, rows, places, counts = (one.to(device) for one in (words, rows, places, counts))
    x = model.words(words[:, :-1]) + model.places.weight[: longest - 1]
    for layer in model.layers:
        x = layer(x)
    logits = model.head(model.norm(x[rows, places - 1])).float()
    each = -F.cross_entropy(logits, words[rows, places], reduction="none")
    total = torch.zeros(len(texts), device=device).index_add_(0, rows, each)
    return (total / counts).view(len(asked), -1).tolist()


@torch.inference_mode()
def main():
    known = questions()
    with device:
        model = Writer().to(dtype).eval()
    lead, began, right, total = min(STEPS // 2, 8), 0.0, 0, 0.0
    together = TOGETHER if "questions-together" in FIX else 1
    done = 0
    while done < STEPS:
        if done == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        # The lead is a batch of its own, so that the clock begins where it should.
        count = min(together, (lead if done < lead else STEPS) - done)
        asked = [known[(done + i) % KNOWN] for i in range(count)]
        found = ask_many(model, asked) if "questions-together" in FIX else [ask(model, one) for one in asked]
        for scores, (_, _, answer) in zip(found, asked, strict=True):
            right += scores.index(max(scores)) == answer
            total += scores[answer]
        if done // 100 != (done + count) // 100:
            print(f"{done + count} questions: right {right / (done + count):.3f}")
        done += count
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"likelihood {total / STEPS:.5f}, right {right / STEPS:.3f}; {each:.3f} ms per question")


main()
