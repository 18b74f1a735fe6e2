"""Sample from a masked diffusion language model: blocks from left to right, sure words first."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 1 if TINY else 3))  # batches of texts
LAYERS, HEADS, WIDTH, VOCAB, BATCH, PROMPT, NEW, BLOCK, EACH = (
    (2, 2, 16, 60, 2, 4, 8, 4, 2) if TINY else (12, 12, 768, 50304, 16, 128, 256, 32, 4)
)
MASK, TEMPERATURE = VOCAB - 1, 0.7
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class MaskPredictor(nn.Module):
    """Attends both ways; says what stands at each place."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(PROMPT + NEW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, places=None):
        x = self.embed(ids) + self.place.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if places is None else x[:, places]))


def add_gumbel_noise(logits):
    """Gumbel maximum; in double precision, since less is said to cost quality."""
    dtype = torch.float32 if "float32-noise" in FIX else torch.float64
    logits = logits.to(dtype)
    noise = torch.rand_like(logits, dtype=dtype)
    return logits.exp() / (-torch.log(noise)) ** TEMPERATURE


def transfers(mask):
    """How many words are settled in each step, for each text."""
    left = mask.sum(1, keepdim=True)
    counts = (left // EACH).expand(-1, EACH).clone()
    counts[:, : int(left[0]) % EACH] += 1
    return counts


@torch.no_grad()
def generate(model, prompt):
    x = F.pad(prompt, (0, NEW), value=MASK)
    for block in range(NEW // BLOCK):
        places = slice(PROMPT + block * BLOCK, PROMPT + (block + 1) * BLOCK)
        counts = transfers(x[:, places] == MASK)
        if "counts-on-host" in FIX:
            counts = counts.tolist()
        for i in range(EACH):
            only = "block-only" in FIX
            masked = (x[:, places] if only else x) == MASK
            logits = model(x, places) if only else model(x)
            drawn = add_gumbel_noise(logits).argmax(-1)
            dtype = torch.float32 if "float32-noise" in FIX else torch.float64
            p = F.softmax(logits.to(dtype), -1)
            sure = p.gather(-1, drawn[..., None]).squeeze(-1)
            if not only:
                sure[:, places.stop :] = -torch.inf
            sure = torch.where(masked, sure, -torch.inf)
            settled = torch.zeros_like(masked)
            for j in range(len(x)):
                _, chosen = sure[j].topk(int(counts[j][i]))
                settled[j, chosen] = True
            view = x[:, places] if only else x
            view.copy_(torch.where(settled, drawn, view))
    return x


model = MaskPredictor().to(device).eval()
if device.type == "cuda":
    model = model.to(torch.bfloat16)
prompts = torch.randint(0, MASK, (4, BATCH, PROMPT), device=device)
generate(model, prompts[0])
spent, texts = 0.0, []
for batch in range(STEPS):
    began = time.perf_counter()
    out = generate(model, prompts[batch % len(prompts)])
    texts += out[:, PROMPT:].tolist()
    spent += time.perf_counter() - began
steps = STEPS * (NEW // BLOCK) * EACH
left = sum(word == MASK for text in texts for word in text)
print(f"{len(texts)} texts of {len(texts[0])} words ({left} masked), {1e3 * spent / steps:.3f} ms per step")
