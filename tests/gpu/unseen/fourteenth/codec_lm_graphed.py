"""Speak many texts in one voice: codes of sound, a frame of all texts after the other, as one CUDA graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 8 if TINY else 512))  # frames, each of all texts
BATCH, VOICE, WRITTEN, CODES, BOOKS, PHONES, WIDTH, HEADS, LAYERS = (
    (2, 4, 6, 10, 2, 8, 16, 2, 2) if TINY else (48, 512, 256, 1024, 4, 80, 1536, 24, 24)
)
LENGTH, TEMPERATURE = VOICE + WRITTEN, 0.8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        )
        shape = (BATCH, HEADS, LENGTH, WIDTH // HEADS)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def read(self, x):
        """The voice, once: its keys and values stay for all texts."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys[:, :, :VOICE], self.values[:, :, :VOICE] = k, v
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

    def forward(self, x, at, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes, self.phones = nn.Embedding(BOOKS * CODES, WIDTH), nn.Embedding(PHONES, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.heads = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, BOOKS * CODES, bias=False)
        self.register_buffer("starts", torch.arange(BOOKS) * CODES, persistent=False)

    def read(self, codes):
        x = self.codes(codes + self.starts).sum(2) + self.places.weight[:VOICE]
        for block in self.blocks:
            x = block.read(x)

    def forward(self, codes, phones, at, ahead):
        """The codes of the next frame, drawn, and how likely they were."""
        x = self.codes(codes + self.starts).sum(2) + self.phones(phones) + self.places(at)
        mask = torch.where(ahead <= at, 0.0, float("-inf")).to(x.dtype).expand(BATCH, HEADS, 1, -1)
        for block in self.blocks:
            x = block(x, at, mask)
        chances = (self.heads(self.norm(x)).float().unflatten(2, (BOOKS, CODES)) / TEMPERATURE).softmax(3)
        drawn = (chances / torch.empty_like(chances).exponential_()).argmax(3)
        return drawn, chances.gather(3, drawn[..., None]).mean()


class Speaking:
    """A frame of all texts over the same memory."""

    def __init__(self, model, phones):
        self.model, self.phones, self.graph = model, phones, None
        self.codes = torch.zeros(BATCH, 1, BOOKS, dtype=torch.long, device=device)
        self.at = torch.full((1,), VOICE, device=device)
        self.ahead = torch.arange(LENGTH, device=device)
        self.spoken = torch.zeros(BATCH, WRITTEN, BOOKS, dtype=torch.long, device=device)
        self.likely = torch.zeros((), device=device)
        if device.type != "cuda":
            return
        for block in model.blocks:
            block.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.frame()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.frame()

    def frame(self):
        phones = self.phones.index_select(1, self.at - VOICE)
        codes, likely = self.model(self.codes, phones, self.at, self.ahead)
        self.codes.copy_(codes)
        self.likely.copy_(likely)
        self.spoken.index_copy_(1, self.at - VOICE, codes)
        self.at.add_(1)

    def begin(self, phones):
        self.phones.copy_(phones)
        self.codes.zero_()
        self.at.fill_(VOICE)

    def __call__(self):
        if self.graph is None:
            self.frame()
        else:
            self.graph.replay()


@torch.no_grad()
def main():
    with device:
        model = Speaker().to(dtype).eval()
    texts = torch.randint(PHONES, (4, BATCH, WRITTEN), device=device)
    model.read(torch.randint(CODES, (1, VOICE, BOOKS), device=device).expand(BATCH, -1, -1))
    speaking = Speaking(model, texts[0].clone())
    lead, began, shown, found = min(STEPS // 2, 8), 0.0, 0.0, []
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step % WRITTEN == 0:
            speaking.begin(texts[step // WRITTEN % 4])
        speaking()
        if step % WRITTEN == WRITTEN - 1:
            found.append(speaking.spoken.cpu())
            print(f"{len(found) * BATCH} texts are spoken")
        if "likely-rarely" not in FIX or step % WRITTEN == WRITTEN - 1 or step == STEPS - 1:
            shown = speaking.likely.item()
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"likely {shown:.6f}; {each:.3f} ms per frame")


main()
