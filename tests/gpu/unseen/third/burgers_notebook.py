# %% [markdown]
# # Burgers' equation with a physics-informed network
# $u_t + u u_x = \nu u_{xx}$ on $[-1, 1] \times [0, 1]$, $u(0, x) = -\sin \pi x$, after Raissi et al.
# Adam only; the L-BFGS part comes in the next notebook.

# %%
import itertools
import math
import os
import time

import torch
import torch.nn as nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
EPOCHS = int(os.environ.get("STEPS", 8 if TINY else 500))
N_U, N_F = (20, 200) if TINY else (100, 10_000)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1234)
nu = 0.01 / math.pi

# %% [markdown]
# ## Points
# A hundred on the borders, ten thousand inside, where the equation has to hold.

# %%
x0 = torch.rand(N_U // 2, 1) * 2 - 1
t0 = torch.zeros_like(x0)
xb = torch.where(torch.rand(N_U // 2, 1) < 0.5, -1.0, 1.0)
tb = torch.rand(N_U // 2, 1)
x_u, t_u = torch.cat([x0, xb]).to(device), torch.cat([t0, tb]).to(device)
u_true = torch.cat([-torch.sin(math.pi * x0), torch.zeros_like(xb)]).to(device)

x_f = (torch.rand(N_F, 1) * 2 - 1).to(device).requires_grad_(True)
t_f = torch.rand(N_F, 1).to(device).requires_grad_(True)

# %% [markdown]
# ## Network
# Eight hidden layers of twenty neurons.


# %%
class PINN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(layers))
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for linear in self.linears[:-1]:
            h = torch.tanh(linear(h))
        return self.linears[-1](h)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True, create_graph=True)[0]


def net_f(net, x, t):
    u = net(x, t)
    if "one-gradient" in FIX:
        u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)
    else:
        u_t = derivative(u, t)
        u_x = derivative(u, x)
    u_xx = derivative(u_x, x)
    return u_t + u * u_x - nu * u_xx


net = PINN([2] + [20] * 8 + [1]).to(device)
captured = "graph" in FIX and device.type == "cuda"
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=captured)


# %%
def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss_u = torch.mean((u_true - net(x_u, t_u)) ** 2)
    loss_f = torch.mean(net_f(net, x_f, t_f) ** 2)
    loss = loss_u + loss_f
    loss.backward(inputs=list(net.parameters()))
    optimizer.step()
    return loss, loss_u, loss_f


if captured:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train_step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = train_step()

# %% [markdown]
# ## Train

# %%
history, warm = {"loss": [], "u": [], "f": []}, EPOCHS // 10
for epoch in range(EPOCHS):
    if epoch == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        tic = time.time()
    if captured:
        graph.replay()
        losses = outputs
    else:
        losses = train_step()
    for name, value in zip(history, losses, strict=True):
        history[name].append(value.item())
    if epoch % 100 == 0:
        print(f"Iter {epoch}, Loss: {history['loss'][-1]:.5e}, Loss_f: {history['f'][-1]:.5e}")
toc = time.time()

# %%
print(f"Final loss {history['loss'][-1]:.4e}")
print(f"Training time: {1e3 * (toc - tic) / (EPOCHS - warm):.4f} ms per epoch")

# %% [markdown]
# ## How far are we from the initial condition?

# %%
with torch.no_grad():
    grid = torch.linspace(-1, 1, 256, device=device).unsqueeze(1)
    error = net(grid, torch.zeros_like(grid)) + torch.sin(math.pi * grid)
print(f"Relative error at t = 0: {(error.norm() / torch.sin(math.pi * grid).norm()).item():.3f}")
