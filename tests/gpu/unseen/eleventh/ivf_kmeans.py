"""Coarse cells of a vector index: k-means over a million embeddings."""

import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # iterations
VECTORS, WIDTH, CELLS, CHUNK = (300, 8, 12, 100) if TINY else (1_000_000, 128, 1024, 250_000)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def embeddings():
    """Vectors that lie around some centres."""
    centres = torch.randn(CELLS // 2, WIDTH, device=device)
    return centres[torch.randint(len(centres), (VECTORS,), device=device)] + 0.7 * torch.randn(
        VECTORS, WIDTH, device=device
    )


class KMeans:
    def __init__(self, cells, restart):
        self.cells, self.restart = cells, restart
        self.centres, self.shift = None, 0.0

    def begin(self, x):
        self.centres = x[torch.randperm(len(x), device=x.device)[: self.cells]].clone()

    def assign(self, x):
        """The nearest centre of each vector."""
        squares = self.centres.square().sum(1)
        return torch.cat([(squares - 2 * some @ self.centres.T).argmin(1) for some in x.split(CHUNK)])

    def update(self, x, nearest):
        """Centres go to the middle of what is nearest to them; those of nothing begin anew."""
        if "add-by-index" in FIX:
            return self.update_all(x, nearest)
        centres = self.centres.clone()
        for cell in range(self.cells):
            selected = torch.nonzero(nearest == cell).squeeze(1)
            selected = torch.index_select(x, 0, selected)
            if selected.shape[0] == 0:
                selected = x[torch.randint(len(x), (1,), device=x.device)]
            centres[cell] = selected.mean(dim=0)
        return centres

    def update_all(self, x, nearest):
        sums = torch.zeros_like(self.centres).index_add_(0, nearest, x)
        counts = torch.bincount(nearest, minlength=self.cells)[:, None]
        anew = x[torch.randint(len(x), (self.cells,), device=x.device)]
        return torch.where(counts > 0, sums / counts.clamp(1), anew)

    def iterate(self, x):
        centres = self.update(x, self.assign(x))
        shift = (centres - self.centres).square().sum(1).sqrt().sum().square()
        self.centres = centres
        return shift


def main():
    x = embeddings()
    index = KMeans(CELLS, restart=25)
    index.begin(x)
    lead, began, shift = min(STEPS // 2, 2), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        if step and step % index.restart == 0:
            index.begin(x)  # another try
        moved = index.iterate(x)
        if "shift-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
            shift = moved.item()
        if step % 10 == 0:
            print(f"iteration {step}: centres moved by {shift:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"moved {shift:.5f}; {each:.3f} ms per iteration")


main()
