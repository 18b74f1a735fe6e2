"""The same net multiplies with the matrix of the edges' weights, and back with its transpose."""

import torch

NODES, EDGES, WIDTH = 100_000, 1_000_000, 128


class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx, gradient):
        return None, None, ctx.transposed @ gradient


def build(device):
    source, target = torch.randint(0, NODES, (2, EDGES), device=device)
    weight = torch.rand(EDGES, device=device)
    size = (NODES, NODES)
    matrix = torch.sparse_coo_tensor(torch.stack([target, source]), weight, size).coalesce().to_sparse_csr()
    transposed = (
        torch.sparse_coo_tensor(torch.stack([source, target]), weight, size).coalesce().to_sparse_csr()
    )
    layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), fused=True)
    features = torch.randn(NODES, WIDTH, device=device)
    labels = torch.randint(0, WIDTH, (NODES,), device=device)

    def step():
        x = features
        for layer in layers:
            x = torch.relu(Propagate.apply(matrix, transposed, layer(x)))
        torch.nn.functional.cross_entropy(x, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
