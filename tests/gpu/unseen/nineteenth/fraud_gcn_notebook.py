"""Which accounts are not what they seem? A graph of payments, all of it in each epoch. From a notebook."""

# %% What is needed
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 60))  # epochs, each a step with the whole graph
ACCOUNTS, PAYMENTS, FEATURES, WIDE = (60, 150, 8, 16) if TINY else (400_000, 3_000_000, 64, 128)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True

# %% The graph: payments lead both ways, and each account to itself
one = torch.randint(ACCOUNTS, (PAYMENTS,), device=device)
other = (ACCOUNTS * torch.rand(PAYMENTS, device=device).square()).long().clamp(max=ACCOUNTS - 1)
both = torch.stack([torch.minimum(one, other), torch.maximum(one, other)])[:, one != other]
pairs = torch.unique(both[0] * ACCOUNTS + both[1])
one, other = pairs // ACCOUNTS, pairs % ACCOUNTS
itself = torch.arange(ACCOUNTS, device=device)
edge_index = torch.stack([torch.cat([one, other, itself]), torch.cat([other, one, itself])])
x = torch.randn(ACCOUNTS, FEATURES, device=device)
y = (x[:, 0] + 0.5 * torch.zeros(ACCOUNTS, device=device).index_add_(0, one, x[other, 1]) > 1).long()
train = torch.rand(ACCOUNTS, device=device) < 0.6
print(f"{ACCOUNTS} accounts, {edge_index.shape[1]} edges, {y.float().mean():.3f} fraud")


# %% The layers
def gcn_norm(edge_index):
    row, col = edge_index
    degree = torch.zeros(ACCOUNTS, device=device).scatter_add_(0, col, torch.ones_like(col, dtype=x.dtype))
    root = degree.pow(-0.5)
    root = root.masked_fill(root == float("inf"), 0)
    return root[row] * root[col]


class Spread(torch.autograd.Function):
    """A product with a matrix that is its own transpose."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.matrix @ grad.contiguous()


def matrix_of(edge_index):
    norm = gcn_norm(edge_index)
    return torch.sparse_coo_tensor(edge_index.flip(0), norm, (ACCOUNTS, ACCOUNTS)).coalesce().to_sparse_csr()


matrix = matrix_of(edge_index) if "sparse-product" in FIX else None
kept = gcn_norm(edge_index) if "norm-once" in FIX else None


class GCNConv(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.lin, self.bias = nn.Linear(enter, leave, bias=False), nn.Parameter(torch.zeros(leave))

    def forward(self, x, edge_index):
        x = self.lin(x)
        if matrix is not None:
            return Spread.apply(matrix, x) + self.bias
        row, col = edge_index
        norm = gcn_norm(edge_index) if kept is None else kept
        messages = norm.view(-1, 1) * x[row]
        out = torch.zeros(x.size(0), x.size(1), device=x.device)
        out.index_add_(0, col, messages)
        return out + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(FEATURES, WIDE), GCNConv(WIDE, WIDE), GCNConv(WIDE, WIDE)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDE) for _ in range(3)])
        self.out = nn.Linear(WIDE, 2)

    def forward(self, x, edge_index):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.dropout(F.relu(norm(conv(x, edge_index))), 0.2, self.training)
        return self.out(x)


model = GCN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=device.type == "cuda")
rare = torch.tensor([1.0, 4.0], device=device)

# %% Training
history, lead, began = [], min(STEPS // 2, 6), 0.0
for epoch in range(STEPS):
    if epoch == lead:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
    model.train()
    optimizer.zero_grad()
    logits = model(x, edge_index)
    loss = F.cross_entropy(logits[train], y[train], weight=rare)
    loss.backward()
    optimizer.step()
    if "figures-rarely" not in FIX or epoch % 20 == 0 or epoch == STEPS - 1:
        right = (logits.argmax(1) == y)[train].float().mean().item()
        history.append((loss.item(), right))
    if epoch % 20 == 0:
        print(f"epoch {epoch}: loss {history[-1][0]:.4f}, right {history[-1][1]:.3f}")
if device.type == "cuda":
    torch.cuda.synchronize()
each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)

# %% How it went
print(f"loss {history[-1][0]:.5f}, right {history[-1][1]:.4f}; {each:.3f} ms per step")
