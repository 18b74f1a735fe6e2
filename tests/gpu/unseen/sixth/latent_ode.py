"""A latent ODE for series that are seen at odd times: recurrent encoder, dopri5, decoder."""

import os
import time

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 20))
BATCH, TIMES, SEEN, OBSERVED, LATENT, HIDDEN, RNN = (
    (4, 6, 4, 2, 4, 8, 8) if TINY else (256, 30, 20, 8, 16, 128, 128)
)
NOISE = 0.2
RTOL, ATOL = (1e-3, 1e-3) if "looser" in FIX else (1e-4, 1e-5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class LatentODEfunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LATENT, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, LATENT),
        )
        self.nfe = 0

    def forward(self, t, x):
        self.nfe += 1
        return self.net(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(OBSERVED + 1, RNN, batch_first=True), nn.Linear(RNN, 2 * LATENT)

    def forward(self, series, times):
        gaps = times.diff(prepend=times[:1]).expand(len(series), -1)[..., None]
        _, h = self.rnn(torch.cat([series, gaps], -1).flip(1))
        return self.out(h[0]).chunk(2, -1)


def spirals(count, times):
    """Damped waves of as many phases as there are observed numbers."""
    phase = 6.3 * torch.rand(count, 1, OBSERVED)
    speed = 0.5 + torch.rand(count, 1, 1)
    t = times[None, :, None]
    waves = torch.exp(-0.1 * t) * torch.sin(6.3 * speed * t + phase)
    return waves + 0.1 * torch.randn(count, TIMES, OBSERVED)


times = torch.sort(5 * torch.rand(TIMES)).values
data = spirals(16 * BATCH, times).to(device)
times = times.to(device)
func, encoder = LatentODEfunc().to(device), Encoder().to(device)
decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OBSERVED)).to(device)
parameters = [*func.parameters(), *encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
solve = odeint if "backprop-through" in FIX else odeint_adjoint
spent, shown = [], 0.0
for step in range(STEPS):
    began = time.perf_counter()
    func.nfe = 0
    batch = data[torch.randint(len(data), (BATCH,), device=device)]
    mean, logvar = encoder(batch[:, :SEEN], times[:SEEN])
    z0 = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
    z = solve(func, z0, times - times[0], rtol=RTOL, atol=ATOL)
    predicted = decoder(z.transpose(0, 1))
    likelihood = -0.5 * ((batch - predicted) / NOISE).square().sum((1, 2))
    kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1)
    loss = (kl - likelihood).mean()
    forward = func.nfe
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.item()
    spent.append(time.perf_counter() - began)
    if step % 10 == 0:
        print(f"Iter: {step}, elbo: {-shown:.4f}, nfe {forward} forward, {func.nfe - forward} backward")
kept = spent[min(STEPS // 2, 4) :]
print(f"elbo {-shown:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")
