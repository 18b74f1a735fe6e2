"""A small language model writes sixteen answers; each layer keeps the keys and values of what was written."""

import torch
import torch.nn.functional as F
from torch import nn

RECORD = {"fresh_process": True}
WIDTH, HEADS, LAYERS, VOCAB, PROMPT = 1024, 16, 12, 8192, 700


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache, start):
        sizes = *x.shape[:2], 3, HEADS, WIDTH // HEADS
        q, k, v = self.qkv(self.norm1(x)).view(sizes).permute(2, 0, 3, 1, 4)
        end = start + x.shape[1]
        cache[0, :, :, start:end], cache[1, :, :, start:end] = k, v
        k, v = cache[:, :, :, :end]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, cache, start):
        x = self.words(tokens) + self.places.weight[start : start + tokens.shape[1]]
        for layer, kept in zip(self.layers, cache, strict=True):
            x = layer(x, kept, start)
        return self.head(self.norm(x)[:, -1])


def build(device):
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each length
    model = Writer().to(device, torch.bfloat16).eval()
    prompt = torch.randint(VOCAB, (16, PROMPT), device=device)
    cache = torch.zeros(LAYERS, 2, 16, HEADS, 1024, WIDTH // HEADS, device=device, dtype=torch.bfloat16)
    tokens, start = prompt, 0

    @torch.no_grad()
    def step():
        nonlocal tokens, start
        if start + tokens.shape[1] == 1024:
            tokens, start = prompt, 0
        chances = F.softmax(model(tokens, cache, start).float(), -1)
        start += tokens.shape[1]
        tokens = torch.multinomial(chances, 1)
        return tokens

    return step
