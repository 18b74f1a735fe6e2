"""A graph net multiplies by its adjacency in COO form: each backward pass sorts the transpose, by layer."""

import torch

NODES, EDGES, WIDTH, LAYERS = 30_000, 600_000, 64, 3


def build(device):
    index = torch.randint(0, NODES, (2, EDGES), device=device)
    graph = torch.sparse_coo_tensor(index, torch.rand(EDGES, device=device), (NODES, NODES)).coalesce()
    nodes = torch.nn.Embedding(NODES, WIDTH).to(device)
    optimizer = torch.optim.Adam(nodes.parameters(), fused=True)

    def step():
        x = nodes.weight
        for _ in range(LAYERS):
            x = torch.sparse.mm(graph, x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
