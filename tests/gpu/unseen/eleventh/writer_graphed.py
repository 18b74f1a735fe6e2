"""Stories from titles, overnight: many at a time, and a token of all of them is one graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 24 if TINY else 800))  # tokens of each story, all piles together
BATCH, PROMPT, ANSWER, VOCAB, WIDE, INNER, HEAD, GROUPS, LAYERS = (
    (2, 6, 8, 64, 32, 48, 16, 1, 1) if TINY else (64, 32, 224, 32_000, 4096, 14_336, 128, 8, 24)
)
END, TOP = 1, 40  # the word that ends a story; of so many likely words one is drawn
LENGTH, EACH = PROMPT + ANSWER, WIDE // HEAD // GROUPS
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    """Queries of a group of heads share keys and values, hence they stand as rows of one head."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv = nn.Linear(WIDE, WIDE + 2 * GROUPS * HEAD, bias=False)
        self.out = nn.Linear(WIDE, WIDE, bias=False)
        self.gate_up = nn.Linear(WIDE, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDE, bias=False)
        shape = (BATCH, GROUPS, LENGTH, HEAD)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def split(self, x):
        q, k, v = self.qkv(self.norm1(x)).split([WIDE, GROUPS * HEAD, GROUPS * HEAD], -1)
        return q.unflatten(2, (GROUPS, EACH, HEAD)), *(
            one.unflatten(2, (GROUPS, HEAD)).transpose(1, 2) for one in (k, v)
        )

    def after(self, x, y):
        x = x + self.out(y)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def read(self, x):
        q, k, v = self.split(x)
        self.keys[:, :, :PROMPT], self.values[:, :, :PROMPT] = k, v
        k, v = (one.repeat_interleave(EACH, 1) for one in (k, v))
        y = F.scaled_dot_product_attention(q.flatten(2, 3).transpose(1, 2), k, v, is_causal=True)
        return self.after(x, y.transpose(1, 2).flatten(2))

    def forward(self, x, at, mask):
        q, k, v = self.split(x)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q[:, 0], self.keys, self.values, attn_mask=mask)
        return self.after(x, y.flatten(1)[:, None])


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(LENGTH, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDE), nn.Linear(WIDE, VOCAB, bias=False)

    def draw(self, x):
        """One of the likeliest words."""
        likely = self.head(self.norm(x[:, -1])).float().topk(TOP)
        noise = torch.empty_like(likely.values).exponential_()
        return likely.indices.gather(1, (likely.values.softmax(1) / noise).argmax(1, keepdim=True))

    def read(self, words):
        x = self.words(words) + self.places.weight[:PROMPT]
        for block in self.blocks:
            x = block.read(x)
        return self.draw(x)

    def forward(self, words, at, ahead):
        mask = torch.where(ahead <= at, 0.0, float("-inf")).to(dtype).expand(BATCH, GROUPS, EACH, -1)
        x = self.words(words) + self.places(at)
        for block in self.blocks:
            x = block(x, at, mask)
        return self.draw(x)


class Decoding:
    """A token of all stories as one graph over the same memory."""

    def __init__(self, model):
        self.model, self.graph = model, None
        self.words = torch.zeros(BATCH, 1, dtype=torch.long, device=device)
        self.at = torch.full((1,), PROMPT, device=device)
        self.ahead = torch.arange(LENGTH, device=device)
        self.written = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device)
        self.ended = torch.zeros(BATCH, 1, dtype=torch.bool, device=device)
        if device.type != "cuda":
            return
        for block in model.blocks:
            block.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.token()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.token()

    def token(self):
        self.words.copy_(self.model(self.words, self.at, self.ahead))
        self.written.index_copy_(1, self.at, self.words)
        self.ended.logical_or_(self.words == END)
        self.at.add_(1)

    def begin(self, titles):
        self.words.copy_(self.model.read(titles))
        self.at.fill_(PROMPT)
        self.ended.fill_(False)

    def __call__(self):
        if self.graph is None:
            self.token()
        else:
            self.graph.replay()


@torch.no_grad()
def main():
    with device:
        model = Writer().to(dtype).eval()
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.02)
    decoding = Decoding(model)
    pile = torch.randint(VOCAB, (4, BATCH, PROMPT), device=device)
    lead, began, since, piles = min(STEPS // 2, 8), 0.0, ANSWER, 0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if since == ANSWER:
            decoding.begin(pile[piles % len(pile)])
            since, piles = 0, piles + 1
        decoding()
        since += 1
        look = "ended-rarely" not in FIX or since % 32 == 0
        if look and decoding.ended.all().item():
            since = ANSWER  # all stories have come to an end
    unlike = len(decoding.written[:, PROMPT:].unique())
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"{piles} piles, {unlike} words in use; {each:.4f} ms per token")


main()
