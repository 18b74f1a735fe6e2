"""Will it be clicked? Attention between the fields of an advertisement, a step of training in one graph."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 400))
SHOWN, BATCH, KINDS, NUMBERS, ROWS, WIDE, LAYERS, HEAD = (
    (64, 8, 4, 2, 20, 32, 1, 16) if TINY else (1_000_000, 16_384, 26, 13, 20_000, 64, 3, 32)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
low = device.type == "cuda"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Interact(nn.Module):
    """Each field looks at all others."""

    def __init__(self):
        super().__init__()
        self.qkv, self.skip = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        return F.relu(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) + self.skip(x))


class AutoInt(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(KINDS * ROWS, WIDE)
        nn.init.normal_(self.table.weight, std=0.01)
        self.register_buffer("starts", torch.arange(KINDS) * ROWS)
        self.numbers = nn.Parameter(0.01 * torch.randn(NUMBERS, WIDE))
        self.layers = nn.Sequential(*(Interact() for _ in range(LAYERS)))
        fields = (KINDS + NUMBERS) * WIDE
        self.deep = nn.Sequential(nn.Linear(fields, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.out = nn.Linear(fields + 256, 1)

    def forward(self, kinds, numbers, clicked):
        fields = torch.cat([self.table(kinds + self.starts), numbers[:, :, None] * self.numbers], 1)
        seen = self.layers(fields)
        said = self.out(torch.cat([seen.flatten(1), self.deep(fields.flatten(1))], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(said.float(), clicked)


class Training:
    """Forward, backward and the optimizer over the same memory; what is shown is copied there first."""

    def __init__(self, model):
        self.model, self.graph = model, None
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=low, capturable=low)
        self.kinds = torch.zeros(BATCH, KINDS, dtype=torch.long, device=device)
        self.numbers = torch.zeros(BATCH, NUMBERS, device=device)
        self.clicked = torch.zeros(BATCH, device=device)

    def forward_backward(self):
        with torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            loss = self.model(self.kinds, self.numbers, self.clicked)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def eager(self):
        self.optimizer.zero_grad(set_to_none=True)
        return self.forward_backward()

    def capture(self, batches, warm=3):
        """The first steps as they are, on a stream of their own; then one that is kept."""
        self.model.compile(dynamic=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warm):
                self.show(*next(batches))
                self.eager()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.forward_backward()

    def show(self, kinds, numbers, clicked):
        self.kinds.copy_(kinds)
        self.numbers.copy_(numbers)
        self.clicked.copy_(clicked)

    def step(self, batch):
        self.show(*batch)
        if self.graph is None:
            return self.eager()
        self.graph.replay()
        return self.loss


def shown():
    """Advertisements of all kinds, on the device."""
    kinds = (torch.rand(SHOWN, KINDS, device=device).pow(3) * ROWS).long().clamp(max=ROWS - 1)
    numbers = torch.randn(SHOWN, NUMBERS, device=device)
    liked = numbers[:, 0] + (kinds[:, 0] % 7 - 3) * 0.3 + (kinds[:, 1] % 5 == kinds[:, 2] % 5) - 1.5
    return kinds, numbers, (torch.rand(SHOWN, device=device) < liked.sigmoid()).float()


def batches(data):
    while True:
        for chosen in torch.randperm(SHOWN, device=device).split(BATCH):
            if len(chosen) == BATCH:
                yield tuple(part[chosen] for part in data)


def main():
    coming = batches(shown())
    with device:
        model = AutoInt()
    training = Training(model)
    if low:
        training.capture(coming)
    lead, began, loss = min(STEPS // 2, 10), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if low:
                torch.cuda.synchronize()
            began = time.perf_counter()
        found = training.step(next(coming))
        if "loss-rarely" not in FIX or step % 50 == 0 or step == STEPS - 1:
            loss = found.item()
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.4f}")
    if low:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {loss:.5f}; {each:.3f} ms per step")


main()
