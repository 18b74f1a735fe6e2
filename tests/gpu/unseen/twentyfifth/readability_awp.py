"""How hard is a text to read? BERT is tuned for it, and withstands weights that are moved against it."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 80))
TEXTS, WORDS, BATCH, LONG, WIDE, LAYERS, HEADS = (
    (20, 50, 4, 12, 32, 2, 2) if TINY else (2834, 30522, 24, 256, 768, 12, 12)
)
ADV_LR, ADV_EPS = 1e-2, 1e-2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Reader(nn.Module):
    """BERT without dropout, and the mean of all words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LONG, WIDE)
        self.norm = nn.LayerNorm(WIDE)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDE, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.norm(self.words(tokens) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))[:, 0]


class AWP:
    """Moves all weights against what is learned, a little, and back."""

    def __init__(self, model):
        self.model = model
        self.backup, self.backup_eps = {}, {}

    def attack(self):
        if "all-at-once" in FIX:
            return self.attack_together()
        e = 1e-6
        for name, param in self.model.named_parameters():
            if param.requires_grad and param.grad is not None:
                self.backup[name] = param.data.clone()
                grad_eps = ADV_EPS * param.abs().detach()
                self.backup_eps[name] = (self.backup[name] - grad_eps, self.backup[name] + grad_eps)
                norm1, norm2 = torch.norm(param.grad), torch.norm(param.data.detach())
                if norm1 != 0 and not torch.isnan(norm1):
                    r_at = ADV_LR * param.grad / (norm1 + e) * (norm2 + e)
                    param.data.add_(r_at)
                    lowest, highest = self.backup_eps[name]
                    param.data = torch.min(torch.max(param.data, lowest), highest)
        return None

    @torch.no_grad()
    def attack_together(self):
        """For all weights by a few operations; a gradient of zeros moves nothing."""
        e = 1e-6
        self.params = [param for param in self.model.parameters() if param.grad is not None]
        grads = [param.grad for param in self.params]
        self.kept = [param.clone() for param in self.params]
        eps = torch._foreach_mul(torch._foreach_abs(self.params), ADV_EPS)
        norm1, norm2 = (torch.stack(torch._foreach_norm(of)) for of in (grads, self.params))
        scale = (ADV_LR * (norm2 + e) / (norm1 + e)).unbind()
        torch._foreach_add_(self.params, torch._foreach_mul(grads, scale))
        torch._foreach_clamp_min_(self.params, torch._foreach_sub(self.kept, eps))
        torch._foreach_clamp_max_(self.params, torch._foreach_add(self.kept, eps))

    def restore(self):
        if "all-at-once" in FIX:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.kept)
            return
        for name, param in self.model.named_parameters():
            if name in self.backup:
                param.data = self.backup[name]
        self.backup, self.backup_eps = {}, {}


def main():
    texts = torch.randint(WORDS, (TEXTS, LONG), device=device)
    hard = (texts.float().mean(1) / WORDS - 0.5) * 10
    model = Reader().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True if "fused" in FIX else None)
    awp = AWP(model)

    def loss_of(chosen):
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            found = model(texts[chosen])
        return F.mse_loss(found.float(), hard[chosen])

    lead, began, shown = min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randint(TEXTS, (BATCH,), device=device)
        optimizer.zero_grad()
        loss = loss_of(chosen)
        loss.backward()
        awp.attack()
        adversarial = loss_of(chosen)
        adversarial.backward()
        awp.restore()
        optimizer.step()
        shown = (loss.item(), adversarial.item())
        if step % 20 == 0:
            print(f"step {step}: loss {shown[0]:.4f}, moved {shown[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown[0]:.5f}, moved {shown[1]:.5f}; {each:.3f} ms per step")


main()
