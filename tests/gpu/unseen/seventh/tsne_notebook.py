# %% [markdown]
# # A map of embeddings with t-SNE
# All pairs, no trees: twelve thousand points fit the card (van der Maaten & Hinton, 2008). Points that are
# near each other in 64 dimensions shall be near each other on the map.

# %%
import os
import time

import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 80))
N, DIM, CLUSTERS, PERPLEXITY = (60, 8, 4, 5.0) if TINY else (12_000, 64, 30, 30.0)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

# %% [markdown]
# ## Data
# Clusters of different width.

# %%
centres = 4 * torch.randn(CLUSTERS, DIM, device=device)
which = torch.randint(CLUSTERS, (N,), device=device)
X = centres[which] + (0.5 + torch.rand(CLUSTERS, 1, device=device))[which] * torch.randn(
    N, DIM, device=device
)

# %% [markdown]
# ## Similarities in the space
# For each point the width of a Gaussian is sought such that the perplexity is as wanted; all points at once,
# by bisection.


# %%
def similarities(X, perplexity, rounds=30):
    squares = torch.cdist(X, X).square_()
    squares.fill_diagonal_(float("inf"))
    low = torch.zeros(len(X), 1, device=X.device)
    high = torch.full_like(low, float("inf"))
    beta, wanted = torch.full_like(low, 1.0 / DIM), torch.log(torch.tensor(perplexity, device=X.device))
    for _ in range(rounds):
        P = torch.softmax(-beta * squares, 1)
        entropy = -(P * torch.log(P + 1e-12)).sum(1, keepdim=True)
        flat = entropy > wanted
        low, high = torch.where(flat, beta, low), torch.where(flat, high, beta)
        beta = torch.where(high.isinf(), 2 * beta, (low + high) / 2)
    return ((P + P.T) / (2 * len(X))).clamp(min=1e-12)


P = similarities(X, PERPLEXITY, 10 if TINY else 30)
print(f"{N} points, smallest sum of a row {P.sum(1).min().item():.3e}")

# %% [markdown]
# ## The map
# The gradient is known (equation 5 of the paper), so we need no autograd.


# %%
def gradient(Y, P):
    norms = (Y**2).sum(1)
    squares = norms[:, None] + norms[None, :] - 2 * Y @ Y.T
    kernel = 1 / (1 + squares.clamp(min=0))
    kernel = kernel * (1 - torch.eye(len(Y), device=Y.device))
    Q = (kernel / kernel.sum()).clamp(min=1e-12)
    weights = (P - Q) * kernel
    return 4 * (weights.sum(1, keepdim=True) * Y - weights @ Y)


def divergence(Y, P):
    kernel = 1 / (1 + torch.cdist(Y, Y).square())
    kernel.fill_diagonal_(0)
    Q = (kernel / kernel.sum()).clamp(min=1e-12)
    return (P * torch.log(P / Q)).sum().item()


if "compiled" in FIX:
    gradient = torch.compile(gradient, backend="inductor" if device == "cuda" else "aot_eager")
Y = 1e-2 * torch.randn(N, 2, device=device)
gradient(Y, P)

# %% [markdown]
# Gradient descent with momentum and gains, as in the original code. The norms of the gradient are kept for
# a plot.

# %%
velocity, gains = torch.zeros_like(Y), torch.ones_like(Y)
norms, times = [], []
for iteration in range(STEPS):
    began = time.perf_counter()
    exaggeration, momentum = (4.0, 0.5) if iteration < 40 else (1.0, 0.8)
    grad = gradient(Y, exaggeration * P)
    same = (grad > 0) == (velocity > 0)
    gains = torch.where(same, gains * 0.8, gains + 0.2).clamp(min=0.01)
    velocity = momentum * velocity - 200.0 * gains * grad
    Y = Y + velocity
    Y = Y - Y.mean(0)
    norms.append(grad.norm() if "norms-kept" in FIX else grad.norm().item())
    times.append(time.perf_counter() - began)
    if iteration % 50 == 49:
        print(f"iteration {iteration + 1}: divergence {divergence(Y, P):.4f}")
last = float(norms[-1])

# %%
kept = times[min(STEPS // 2, 4) :]
print(f"divergence {divergence(Y, P):.4f}, gradient {last:.3e}")
print(f"{1e3 * sum(kept) / len(kept):.3f} ms per iteration")
