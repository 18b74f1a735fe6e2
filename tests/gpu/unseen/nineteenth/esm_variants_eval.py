"""Which changes does a protein bear? Each place is hidden in turn, and a model says what belongs there."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 20 if TINY else 500))  # places that are hidden
SHORTEST, LONGEST, WIDE, LAYERS, HEADS = (6, 10, 32, 2, 2) if TINY else (180, 360, 640, 30, 20)
TOGETHER, TOKENS, MASK, START, END = 4 if TINY else 32, 33, 32, 0, 2
AMINO = torch.arange(4, 24)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ProteinModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(TOKENS, WIDE), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.dense, self.head_norm = nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)
        self.bias = nn.Parameter(torch.zeros(TOKENS))
        half = WIDE // HEADS // 2
        angles = torch.arange(LONGEST + 2)[:, None] * 10000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, tokens):
        x, length = self.tokens(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        x = self.head_norm(F.gelu(self.dense(self.norm(x))))
        return x @ self.tokens.weight.T + self.bias


class Progress:
    """How many places are done, and since when time counts."""

    def __init__(self):
        self.done, self.began, self.lead, self.shown = 0, 0.0, None, 0.0

    @staticmethod
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, count, chance):
        self.done += count
        if "chance-rarely" not in FIX or self.done % 100 < count or self.done >= STEPS:
            self.shown = chance.exp().item()
        if self.lead is None and self.done >= min(STEPS // 2, 64):
            self.lead, self.began = self.done, self.now()

    def each(self):
        return 1e3 * (self.now() - self.began) / (self.done - self.lead)


def masked_marginals(model, tokens, progress):
    """Logarithms of chances at each place, when that is hidden."""
    places = range(1, 1 + min(tokens.shape[1] - 2, STEPS - progress.done))
    found = []
    if "places-together" in FIX:
        for begin in range(0, len(places), TOGETHER):
            at = torch.tensor(places[begin : begin + TOGETHER], device=device)
            rows = torch.arange(len(at), device=device)
            masked = tokens.repeat(len(at), 1)
            masked[rows, at] = MASK
            found.append(F.log_softmax(model(masked)[rows, at].float(), 1))
            progress.add(len(at), found[-1].amax())
    else:
        for i in places:
            masked = tokens.clone()
            masked[0, i] = MASK
            chances = F.log_softmax(model(masked).float(), -1)
            found.append(chances[:, i])
            progress.add(1, chances[0, i].amax())
    return torch.cat(found)


def score(tokens, chances, variants):
    """How much likelier than what is there what would come instead is, for each variant."""
    place, instead = variants
    place = place % len(chances)
    return chances[place, instead] - chances[place, tokens[0, 1 + place]]


@torch.inference_mode()
def main():
    with device:
        model = ProteinModel()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.04)
    model = model.to(dtype).eval()
    progress, scores = Progress(), []
    while progress.done < STEPS:
        length = int(torch.randint(SHORTEST, LONGEST + 1, ()))
        protein = AMINO[torch.randint(20, (1, length))]
        tokens = F.pad(F.pad(protein, (1, 0), value=START), (0, 1), value=END).to(device)
        variants = (torch.randint(length, (300,)), AMINO[torch.randint(20, (300,))])
        chances = masked_marginals(model, tokens, progress)
        scores.append(score(tokens, chances, [one.to(device) for one in variants]))
        print(f"{len(scores)} proteins, {progress.done} places, mean score {scores[-1].mean().item():.4f}")
    each = progress.each()
    print(f"score {torch.cat(scores).mean().item():.5f}; {each:.3f} ms per place")


main()
