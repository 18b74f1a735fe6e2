"""Why does the network think so? GNNExplainer on the nodes of a citation graph, one after the other."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import coalesce, k_hop_subgraph, to_undirected

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 10))  # nodes that are explained
NODES, EDGES, FEATURES, HIDDEN, CLASSES, EPOCHS = (
    (200, 800, 16, 8, 4, 4) if TINY else (24_000, 600_000, 128, 128, 12, 30)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def citations():
    """Papers cite papers of their own field more often than others."""
    field = torch.randint(CLASSES, (NODES,))
    order = field.argsort()
    rank = order.argsort()
    source = torch.randint(NODES, (EDGES,))
    near = rank[source] + (torch.randn(EDGES) * NODES / 40).long()
    target = torch.where(
        torch.rand(EDGES) < 0.7, order[near.clamp(0, NODES - 1)], torch.randint(NODES, (EDGES,))
    )
    edge_index = to_undirected(coalesce(torch.stack([source, target])[:, source != target]))
    x = torch.randn(CLASSES, FEATURES)[field] + 2 * torch.randn(NODES, FEATURES)
    return Data(x=x, edge_index=edge_index, y=field)


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(FEATURES, HIDDEN), SAGEConv(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, 0.5, self.training)
        return self.conv2(x, edge_index)


def train(model, data, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    for _ in range(epochs):
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return loss.item()


def explain(explainer, data, node):
    """The edges that matter most for what is predicted of a node: as pairs of nodes, and their weights."""
    if "subgraph" in FIX:
        nodes, edge_index, place, _ = k_hop_subgraph(node, 2, data.edge_index, relabel_nodes=True)
        found = explainer(data.x[nodes], edge_index, index=int(place))
        edges, mask = nodes[edge_index], found.edge_mask
    else:
        found = explainer(data.x, data.edge_index, index=node)
        edges, mask = data.edge_index, found.edge_mask
    if "top-on-device" in FIX:
        weights, best = mask.topk(TOP)
        return edges[:, best].cpu(), weights.cpu()
    weights, best = mask.cpu().topk(TOP)
    return edges.cpu()[:, best], weights


TOP = 5 if TINY else 10
data = citations().to(device)
model = SAGE().to(device)
loss = train(model, data, 5 if TINY else 40)
with torch.no_grad():
    prediction = model(data.x, data.edge_index).argmax(1)
accuracy = (prediction == data.y).float().mean().item()
print(f"trained: loss {loss:.4f}, accuracy {accuracy:.4f}, {data.num_edges} edges")
explainer = Explainer(
    model=model,
    algorithm=GNNExplainer(epochs=EPOCHS, lr=0.01),
    explanation_type="model",
    node_mask_type="attributes",
    edge_mask_type="object",
    model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
)
chosen = torch.randperm(NODES)[:STEPS].tolist()
own_field, times = [], []
for node in chosen:
    began = time.perf_counter()
    edges, weights = explain(explainer, data, node)
    fields = data.y.cpu()[edges]
    own_field.append((fields[0] == fields[1]).float().mean().item())
    times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 1) :]
print(f"explanations within a field: {sum(own_field) / len(own_field):.3f}")
print(f"{1e3 * sum(kept) / len(kept):.3f} ms per node")
