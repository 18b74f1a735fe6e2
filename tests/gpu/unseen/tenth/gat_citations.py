"""Which field is a paper of? Attention over the papers that it cites (GAT), all papers at once."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))  # epochs
PAPERS, CITED, WORDS, HIDDEN, HEADS, FIELDS = (40, 3, 12, 4, 2, 3) if TINY else (8000, 5, 500, 8, 8, 7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def citations():
    """Papers cite papers of their own field, mostly; words hint at the field."""
    labels = torch.randint(FIELDS, (PAPERS,))
    order = labels.argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(PAPERS)
    near = (place[:, None] + torch.randint(1, PAPERS // 10, (PAPERS, CITED))) % PAPERS
    citing, cited = torch.arange(PAPERS).repeat_interleave(CITED), order[near].flatten()
    adjacency = torch.eye(PAPERS)
    adjacency[citing, cited] = adjacency[cited, citing] = 1
    words = (torch.rand(PAPERS, WORDS) < 0.02).float()
    words[torch.arange(PAPERS), labels] = 1
    words = words / words.sum(1, keepdim=True).clamp(min=1)
    return words.to(device), adjacency.to(device), labels.to(device)


class GraphAttentionLayer(nn.Module):
    def __init__(self, inputs, outputs, concat):
        super().__init__()
        self.concat, self.outputs = concat, outputs
        self.W = nn.Parameter(torch.empty(inputs, outputs))
        self.a = nn.Parameter(torch.empty(2 * outputs, 1))
        nn.init.xavier_uniform_(self.W, gain=1.414)
        nn.init.xavier_uniform_(self.a, gain=1.414)

    def over_all(self, own, other, h, adjacency):
        e = F.leaky_relu(own + other.T, 0.2)
        nothing = -9e15 * torch.ones_like(e)
        attention = torch.where(adjacency > 0, e, nothing)
        return torch.matmul(F.softmax(attention, dim=1), h)

    def over_edges(self, own, other, h, edges):
        row, column = edges
        e = F.leaky_relu(own[row, 0] + other[column, 0], 0.2)
        most = torch.full_like(own[:, 0], float("-inf")).scatter_reduce(0, row, e.detach(), "amax")
        weight = (e - most[row]).exp()
        sums = torch.zeros_like(most).index_add(0, row, weight)
        alpha = weight / sums[row]
        return torch.zeros_like(h).index_add(0, row, alpha[:, None] * h[column])

    def forward(self, x, graph):
        h = x @ self.W
        own, other = h @ self.a[: self.outputs], h @ self.a[self.outputs :]
        over = self.over_edges if "edges" in FIX else self.over_all
        h = over(own, other, h, graph)
        return F.elu(h) if self.concat else h


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.attentions = nn.ModuleList(GraphAttentionLayer(WORDS, HIDDEN, True) for _ in range(HEADS))
        self.out = GraphAttentionLayer(HIDDEN * HEADS, FIELDS, False)

    def forward(self, x, graph):
        x = F.dropout(x, 0.6, self.training)
        x = torch.cat([attention(x, graph) for attention in self.attentions], 1)
        x = F.dropout(x, 0.6, self.training)
        return F.log_softmax(F.elu(self.out(x, graph)), 1)


def main():
    cuda = device.type == "cuda"
    words, graph, labels = citations()
    if "edges" in FIX:
        graph = graph.nonzero(as_tuple=True)
    model = GAT().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    known = torch.arange(PAPERS, device=device) % 5 == 0
    lead, began, shown = min(STEPS // 2, 5), 0.0, 0.0
    for epoch in range(STEPS):
        if epoch == lead:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad()
        output = model(words, graph)
        loss = F.nll_loss(output[known], labels[known])
        right = (output.argmax(1) == labels)[known].float().mean()
        loss.backward()
        optimizer.step()
        if "figures-rarely" not in FIX or epoch % 20 == 0 or epoch == STEPS - 1:
            shown, share = loss.item(), right.item()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {shown:.4f}, right {share:.3f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per epoch")


main()
