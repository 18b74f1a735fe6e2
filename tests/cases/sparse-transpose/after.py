"""The transpose is made once, and both are in CSR form."""

import torch

NODES, EDGES, WIDTH, LAYERS = 30_000, 600_000, 64, 3


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx, gradient):
        return None, None, ctx.transposed @ gradient


def build(device):
    index = torch.randint(0, NODES, (2, EDGES), device=device)
    graph = torch.sparse_coo_tensor(index, torch.rand(EDGES, device=device), (NODES, NODES)).coalesce()
    matrix, transposed = graph.to_sparse_csr(), graph.t().coalesce().to_sparse_csr()
    nodes = torch.nn.Embedding(NODES, WIDTH).to(device)
    optimizer = torch.optim.Adam(nodes.parameters(), fused=True)

    def step():
        x = nodes.weight
        for _ in range(LAYERS):
            x = Product.apply(matrix, transposed, x)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
