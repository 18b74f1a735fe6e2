"""A GCN on the whole graph at once, messages passed by hand; tested after each epoch."""

import os
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = int(os.environ.get("STEPS", 5 if TINY else 120))
NODES, EDGES, HIDDEN, CLASSES = (300, 1500, 16, 7) if TINY else (169_343, 1_166_243, 256, 40)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def add_self_loops(edge_index, size):
    loops = torch.arange(size, device=edge_index.device)
    return torch.cat([edge_index, loops.expand(2, -1)], 1)


def gcn_norm(edge_index, size):
    """D^-1/2 (A + I) D^-1/2."""
    edge_index = add_self_loops(edge_index, size)
    row, col = edge_index
    degree = torch.zeros(size, device=col.device).scatter_add_(
        0, col, torch.ones_like(col, dtype=torch.float)
    )
    inverse = degree.pow(-0.5)
    inverse[inverse == float("inf")] = 0
    return edge_index, inverse[row] * inverse[col]


class MessagePassing(nn.Module):
    def propagate(self, edge_index, x, **kwargs):
        messages = self.message(x.index_select(0, edge_index[0]), **kwargs)
        return self.update(self.aggregate(messages, edge_index[1], x.size(0)))

    def message(self, x_j):
        return x_j

    def aggregate(self, messages, index, size):
        index = index.view(-1, 1).expand_as(messages)
        return messages.new_zeros(size, messages.size(1)).scatter_add_(0, index, messages)

    def update(self, out):
        return out


class Multiply(torch.autograd.Function):
    """The product with a symmetric sparse matrix."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.matrix @ grad


class GCNConv(MessagePassing):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin, self.bias = nn.Linear(inputs, outputs, bias=False), nn.Parameter(torch.zeros(outputs))
        self.cached = None

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def forward(self, x, edge_index):
        x = self.lin(x)
        if "spmm" in FIX:
            return Multiply.apply(adjacency, x) + self.bias
        if self.cached is not None:
            edge_index, norm = self.cached
        else:
            edge_index, norm = gcn_norm(edge_index, x.size(0))
            if "cached-norm" in FIX:
                self.cached = edge_index, norm
        return self.propagate(edge_index, x, norm=norm) + self.bias


class GCN(nn.Module):
    def __init__(self, inputs, layers=3):
        super().__init__()
        sizes = [inputs, *[HIDDEN] * (layers - 1), CLASSES]
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(sizes))
        self.bns = nn.ModuleList(nn.BatchNorm1d(HIDDEN) for _ in range(layers - 1))

    def forward(self, x, edge_index):
        for conv, bn in zip(self.convs, self.bns, strict=False):
            x = F.dropout(F.relu(bn(conv(x, edge_index))), 0.5, self.training)
        return self.convs[-1](x, edge_index).log_softmax(-1)


def random_graph():
    source = torch.randint(NODES, (EDGES,), device=device)
    target = (torch.rand(EDGES, device=device) ** 2 * NODES).long()  # some papers are cited by many
    return torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)


class Evaluator:
    def eval(self, y_true, y_pred):
        assert y_true.shape == y_pred.shape
        return float(np.mean(y_true == y_pred))


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)[split["train"]]
    loss = F.nll_loss(out, y[split["train"]])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    y_pred = model(x, edge_index).argmax(-1)
    return [
        evaluator.eval(y[split[part]].cpu().numpy(), y_pred[split[part]].cpu().numpy())
        for part in ("train", "valid", "test")
    ]


edge_index, x = random_graph(), torch.randn(NODES, 128 if not TINY else 16, device=device)
y = torch.randint(CLASSES, (NODES,), device=device)
parts = torch.randperm(NODES, device=device).split([NODES // 2, NODES // 5, NODES - NODES // 2 - NODES // 5])
split = dict(zip(("train", "valid", "test"), parts, strict=True))
if "spmm" in FIX:
    indices, values = gcn_norm(edge_index, NODES)
    adjacency = torch.sparse_coo_tensor(indices.flip(0), values, (NODES, NODES)).coalesce().to_sparse_csr()
model, evaluator = GCN(x.size(1)).to(device), Evaluator()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
durations, best = [], 0.0
for epoch in range(1, EPOCHS + 1):
    start = time.time()
    loss = train()
    train_acc, valid_acc, test_acc = test()
    best = max(best, valid_acc)
    durations.append(time.time() - start)
    if epoch % 20 == 1:
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Train: {train_acc:.2%}, Valid: {valid_acc:.2%}")
kept = durations[EPOCHS // 4 :]
print(f"Loss: {loss:.4f}, best valid {best:.4f}, mean epoch {sum(kept) / len(kept):.6f} s")
