"""How much will each shop sell? A temporal fusion transformer, which weighs each of its variables."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 200))
SHOPS, DAYS, BATCH, PAST, AHEAD, SEEN, KNOWN, WIDE, HEADS = (
    (4, 60, 4, 8, 4, 3, 2, 8, 2) if TINY else (500, 1000, 128, 56, 28, 20, 10, 64, 4)
)
QUANTILES = (0.1, 0.5, 0.9)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Gated(nn.Module):
    """A small network that can be skipped: two layers, a gate, and a norm."""

    def __init__(self, enter=WIDE, leave=WIDE):
        super().__init__()
        self.first, self.second = nn.Linear(enter, WIDE), nn.Linear(WIDE, WIDE)
        self.gate, self.norm = nn.Linear(WIDE, 2 * leave), nn.LayerNorm(leave)
        self.skip = nn.Linear(enter, leave) if enter != leave else nn.Identity()

    def forward(self, x):
        y = self.second(F.elu(self.first(x)))
        return self.norm(self.skip(x) + F.glu(self.gate(y)))


class Variables(nn.Module):
    """Each variable becomes a vector by a layer and a small network of its own."""

    def __init__(self, count):
        super().__init__()
        self.enter = nn.ModuleList(nn.Linear(1, WIDE) for _ in range(count))
        self.gated = nn.ModuleList(Gated() for _ in range(count))

    def forward(self, x):
        found = []
        for i, (enter, gated) in enumerate(zip(self.enter, self.gated, strict=True)):
            found.append(gated(enter(x[..., i : i + 1])))
        return torch.stack(found, 2)


class StackedVariables(nn.Module):
    """The same weights side by side: all variables in one batched product a layer."""

    def __init__(self, variables):
        super().__init__()
        gated = variables.gated
        self.enter = self.stacked(variables.enter)
        self.first, self.second = (
            self.stacked([g.first for g in gated]),
            self.stacked([g.second for g in gated]),
        )
        self.gate, self.norm = self.stacked([g.gate for g in gated]), self.stacked([g.norm for g in gated])

    @staticmethod
    def stacked(layers):
        weights, biases = (
            torch.stack([one.weight for one in layers]),
            torch.stack([one.bias for one in layers]),
        )
        return nn.ParameterList([weights.detach().mT.contiguous() if weights.dim() == 3 else weights.detach(),
                                 biases.detach()[:, None]])  # fmt: skip

    @staticmethod
    def product(x, layer):
        return torch.baddbmm(layer[1], x, layer[0])

    def forward(self, x):
        y = x.flatten(0, 1).T[:, :, None] * self.enter[0] + self.enter[1]
        z = self.product(F.elu(self.product(y, self.first)), self.second)
        y = y + F.glu(self.product(z, self.gate))
        y = F.layer_norm(y, (WIDE,)) * self.norm[0][:, None] + self.norm[1]
        return y.transpose(0, 1).unflatten(0, x.shape[:2])


class Selection(nn.Module):
    """How much each variable matters now, and their sum."""

    def __init__(self, count):
        super().__init__()
        self.variables, self.weigh = Variables(count), Gated(count, count)
        if "stacked" in FIX:
            self.variables = StackedVariables(self.variables)

    def forward(self, x):
        weights = self.weigh(x).softmax(2)
        return (self.variables(x) * weights[..., None]).sum(2)


class TFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.shops = nn.Embedding(SHOPS, WIDE)
        self.begin = nn.ModuleList(Gated() for _ in range(2))
        self.past, self.ahead = Selection(SEEN + KNOWN), Selection(KNOWN)
        self.encoder, self.decoder = (nn.LSTM(WIDE, WIDE, batch_first=True) for _ in range(2))
        self.after, self.norm1 = nn.Linear(WIDE, 2 * WIDE), nn.LayerNorm(WIDE)
        self.enrich, self.qkv, self.out = Gated(), nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.norm2, self.last = nn.LayerNorm(WIDE), Gated()
        self.quantiles = nn.Linear(WIDE, len(QUANTILES))

    def forward(self, shops, seen, known):
        shop = self.shops(shops)
        state = tuple(begin(shop)[None] for begin in self.begin)
        past = self.past(torch.cat([seen, known[:, :PAST]], 2))
        ahead = self.ahead(known[:, PAST:])
        first, state = self.encoder(past, state)
        second, _ = self.decoder(ahead, state)
        x = torch.cat([past, ahead], 1)
        x = self.norm1(x + F.glu(self.after(torch.cat([first, second], 1))))
        x = self.enrich(x + shop[:, None])
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = self.norm2(x + self.out(y))[:, PAST:]
        return self.quantiles(self.last(x))


def pinball(said, sold):
    """What is said of quantiles, and what came."""
    missed = sold[..., None] - said
    at = torch.tensor(QUANTILES, device=device)
    return torch.maximum(at * missed, (at - 1) * missed).sum(2).mean()


def sales():
    """Weeks and years, and what a shop has by itself."""
    days = torch.arange(DAYS, device=device)
    rates = 6.28 / torch.tensor([7.0, 30.0, 365.0], device=device)
    calendar = torch.cat([(days[:, None] * rates).sin(), (days[:, None] * rates).cos()], 1)
    known = torch.randn(SHOPS, DAYS, KNOWN, device=device)
    known[:, :, : min(6, KNOWN)] = calendar[:, : min(6, KNOWN)]
    seen = torch.randn(SHOPS, DAYS, SEEN, device=device)
    seen[:, :, 0] = known.mean(2) + 0.3 * torch.randn(SHOPS, 1, device=device)
    return seen, known


def main():
    seen, known = sales()
    model = TFT().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    window, lead, began, shown = torch.arange(PAST + AHEAD, device=device), min(STEPS // 2, 8), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        shops = torch.randint(SHOPS, (BATCH,), device=device)
        starts = torch.randint(DAYS - PAST - AHEAD, (BATCH,), device=device)
        days = starts[:, None] + window
        now, then = seen[shops[:, None], days], known[shops[:, None], days]
        said = model(shops, now[:, :PAST], then)
        loss = pinball(said, now[:, PAST:, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
