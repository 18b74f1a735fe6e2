"""Classify the entities of a knowledge graph: R-GCN with 46 relations and basis decomposition, full batch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 70))  # epochs
NODES, EDGES, RELATIONS, BASES, HIDDEN, CLASSES = (
    (50, 300, 4, 3, 8, 2) if TINY else (23_644, 148_454, 46, 30, 16, 4)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(12345)


def knowledge_graph():
    """Triples with relations that are frequent or rare, and some entities whose class is known."""
    weights = 1 / torch.arange(1, RELATIONS + 1).float()
    edge_type = torch.multinomial(weights, EDGES, replacement=True)
    edge_index = torch.randint(0, NODES, (2, EDGES))
    known = torch.randperm(NODES)[: NODES // 10]
    labels = (torch.arange(NODES) * 7 // 3) % CLASSES
    return edge_index, edge_type, known[len(known) // 5 :], known[: len(known) // 5], labels


def masked_edge_index(edge_index, edge_mask):
    return edge_index[:, edge_mask]


class RGCNConv(nn.Module):
    def __init__(self, in_channels, out_channels, num_relations, num_bases):
        super().__init__()
        self.num_relations = num_relations
        self.weight = nn.Parameter(torch.empty(num_bases, in_channels, out_channels))
        self.comp = nn.Parameter(torch.empty(num_relations, num_bases))
        self.root = nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        for parameter in (self.weight, self.comp, self.root):
            nn.init.xavier_uniform_(parameter)

    def propagate(self, edge_index, x):
        """The mean of the neighbours' features."""
        source, target = edge_index
        total = x.new_zeros(len(x), x.shape[1]).index_add_(0, target, x[source])
        count = x.new_zeros(len(x)).index_add_(0, target, x.new_ones(len(target)))
        return total / count.clamp(min=1).unsqueeze(1)

    def forward(self, x, edge_index, edge_type):
        weight = (self.comp @ self.weight.flatten(1)).view(self.num_relations, *self.weight.shape[1:])
        if "transform-first" in FIX:
            return x @ self.root + self.bias + self.transformed(x, weight, edge_index, edge_type)
        out = x @ self.root + self.bias
        for i in range(self.num_relations):
            edges = by_relation[i] if "masks-once" in FIX else masked_edge_index(edge_index, edge_type == i)
            h = self.propagate(edges, x)
            out = out + h @ weight[i]
        return out

    def transformed(self, x, weight, edge_index, edge_type):
        """All relations' products at once; each edge then takes the row of its source and relation."""
        source, target = edge_index
        messages = torch.einsum("ni,rio->nro", x, weight).flatten(0, 1)
        messages = messages.index_select(0, source * self.num_relations + edge_type)
        kind = target * self.num_relations + edge_type
        count = x.new_zeros(len(x) * self.num_relations).index_add_(0, kind, x.new_ones(len(kind)))
        messages = messages / count[kind].unsqueeze(1)
        return x.new_zeros(len(x), messages.shape[1]).index_add_(0, target, messages)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(NODES, HIDDEN) * 0.1)
        self.conv1 = RGCNConv(HIDDEN, HIDDEN, RELATIONS, BASES)
        self.conv2 = RGCNConv(HIDDEN, CLASSES, RELATIONS, BASES)

    def forward(self, edge_index, edge_type):
        x = F.relu(self.conv1(self.embedding, edge_index, edge_type))
        x = self.conv2(x, edge_index, edge_type)
        return F.log_softmax(x, dim=1)


edge_index, edge_type, train_idx, test_idx, labels = (one.to(device) for one in knowledge_graph())
if "masks-once" in FIX:
    by_relation = [masked_edge_index(edge_index, edge_type == i) for i in range(RELATIONS)]
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.0005)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(edge_index, edge_type)
    loss = F.nll_loss(out[train_idx], labels[train_idx])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(edge_index, edge_type).argmax(dim=-1)
    train_acc = float((pred[train_idx] == labels[train_idx]).float().mean())
    test_acc = float((pred[test_idx] == labels[test_idx]).float().mean())
    return train_acc, test_acc


times = []
for epoch in range(1, STEPS + 1):
    start = time.time()
    loss = train()
    train_acc, test_acc = test()
    times.append(time.time() - start)
    if epoch % 10 == 0 or epoch == STEPS:
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Train: {train_acc:.4f} Test: {test_acc:.4f}")
print(f"Mean time per epoch: {torch.tensor(times[len(times) // 5 :]).mean():.6f}s")
