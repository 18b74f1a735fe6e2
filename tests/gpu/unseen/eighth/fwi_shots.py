"""Full waveform inversion: how fast is sound below the sea? Shots, receivers, and autograd through time."""

import os
import time

import torch
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 12))
DEPTH, ACROSS, SHOTS, TIMES, SPONGE = (16, 20, 2, 12, 3) if TINY else (120, 200, 8, 400, 15)
SPACING, DT, PEAK = 10.0, 0.0012, 12.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False  # differences of the field need all bits


def layers():
    """Metres a second: water, layers that are bent, and salt that is fast."""
    z = torch.arange(DEPTH, device=device)[:, None].float()
    x = torch.arange(ACROSS, device=device)[None, :].float()
    bent = z + 6 * torch.sin(x * 12 / ACROSS)
    velocity = 1500 + 350 * (bent / (DEPTH / 5)).floor().clamp(min=0)
    salt = ((z - DEPTH * 0.6) / (DEPTH * 0.12)) ** 2 + ((x - ACROSS * 0.5) / (ACROSS * 0.2)) ** 2 < 1
    return torch.where(salt, 4000.0, velocity.expand(DEPTH, ACROSS)).clamp(1500, 4000)


def smoothed(velocity, times=20):
    x = velocity[None, None]
    for _ in range(times):
        x = F.avg_pool2d(F.pad(x, (2, 2, 2, 2), "replicate"), 5, 1)
    return x[0, 0]


def ricker():
    t = torch.arange(TIMES, device=device) * DT - 1.2 / PEAK
    a = (3.14159 * PEAK * t) ** 2
    return (1 - 2 * a) * torch.exp(-a)


def sponge():
    """Waves that come to the border are damped there."""
    z = torch.arange(DEPTH, device=device).float()
    x = torch.arange(ACROSS, device=device).float()
    near = torch.minimum(torch.minimum(x, ACROSS - 1 - x)[None], (DEPTH - 1 - z)[:, None])
    return torch.exp(-((0.015 * (SPONGE - near).clamp(min=0)) ** 2))


WAVELET, DAMP = ricker(), sponge()
STENCIL = torch.zeros(1, 1, 5, 5, device=device)
STENCIL[0, 0, 2] += torch.tensor([-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12], device=device)
STENCIL[0, 0, :, 2] += torch.tensor([-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12], device=device)
STENCIL /= SPACING**2
SOURCES = torch.linspace(SPONGE, ACROSS - 1 - SPONGE, SHOTS, device=device).long()
RECEIVERS = torch.arange(SPONGE, ACROSS - SPONGE, 2, device=device)


def propagate(velocity, sources):
    """What receivers hear of the shots at some places: (shots, times, receivers)."""
    shots = torch.zeros(len(sources), 1, DEPTH, ACROSS, device=device)
    shots[torch.arange(len(sources)), 0, 2, sources] = 1.0
    scale = (velocity * DT) ** 2
    before, now, heard = torch.zeros_like(shots), torch.zeros_like(shots), []
    for t in range(TIMES):
        laplacian = F.conv2d(now, STENCIL, padding=2)
        after = 2 * now - before * DAMP + scale * (laplacian + WAVELET[t] * shots)
        before, now = now * DAMP, after * DAMP
        heard.append(now[:, 0, 3, RECEIVERS])
    return torch.stack(heard, 1)


def main():
    true = layers()
    with torch.no_grad():
        observed = propagate(true, SOURCES)
    velocity = smoothed(true).clone().requires_grad_(True)
    optimizer = torch.optim.Adam([velocity], lr=10.0)
    scale, times, shown = observed.square().mean().sqrt(), [], 0.0
    chunks = [SOURCES] if "shots-together" in FIX else SOURCES.split(1)
    for step in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        losses, first = [], 0
        for sources in chunks:
            heard = propagate(velocity, sources)
            wanted = observed[first : first + len(sources)]
            loss = ((heard - wanted) / scale).square().mean((1, 2)).sum() / SHOTS
            loss.backward()
            losses.append(loss.detach() if "loss-at-end" in FIX else loss.item())
            first += len(sources)
        velocity.grad[:6] = 0  # water is known
        optimizer.step()
        with torch.no_grad():
            velocity.clamp_(1500, 4500)
        shown = float(sum(losses))
        times.append(time.perf_counter() - began)
        if step % 5 == 0:
            wrong = (velocity.detach() - true).abs().mean().item()
            print(f"iteration {step}: misfit {shown:.5f}, wrong by {wrong:.1f} m/s")
    kept = times[min(STEPS // 2, 2) :]
    print(f"misfit {shown:.6f}; {1e3 * sum(kept) / len(kept):.3f} ms per iteration")


main()
