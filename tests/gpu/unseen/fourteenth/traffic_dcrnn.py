"""How fast is traffic in an hour? Recurrent cells whose products walk along the roads between sensors."""

import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 40))
SENSORS, BATCH, SEEN, AHEAD, ENTER, UNITS, LAYERS, WALK, MOMENTS = (
    (9, 3, 4, 4, 2, 6, 1, 2, 60) if TINY else (207, 64, 12, 12, 2, 64, 2, 2, 8000)
)
TEACHING = 2000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def random_walks(rng):
    """Roads to the nearest sensors; steps along them in both directions, as sparse matrices."""
    places = rng.uniform(0, 1, (SENSORS, 2))
    far = np.linalg.norm(places[:, None] - places[None], axis=2)
    near = np.exp(-((far / far.std()) ** 2) * 4)
    near[near < 0.1] = 0.0
    near *= rng.uniform(0.5, 1.0, near.shape)
    np.fill_diagonal(near, 1.0)
    supports = []
    for roads in (near, near.T):
        walk = torch.tensor((roads / roads.sum(1, keepdims=True)).T, dtype=torch.float32)
        supports.append(walk if "dense-supports" in FIX else walk.to_sparse_coo().coalesce())
    return [one.to(device) for one in supports]


class DiffusionConv(nn.Module):
    def __init__(self, enter, leave, supports, start=0.0):
        super().__init__()
        self.supports, self.leave = supports, leave
        self.weight = nn.Parameter(torch.empty(enter * (len(supports) * WALK + 1), leave))
        self.bias = nn.Parameter(torch.full((leave,), start))
        nn.init.xavier_normal_(self.weight)

    def forward(self, x):
        """Each sensor sees what is some steps away: x is of batch, sensor, feature."""
        batch, sensors, features = x.shape
        x0 = x.permute(1, 2, 0).reshape(sensors, features * batch)
        found = [x0]
        for support in self.supports:
            before, now = x0, support @ x0
            found.append(now)
            for _ in range(2, WALK + 1):
                before, now = now, 2 * (support @ now) - before
                found.append(now)
        x = torch.stack(found).view(len(found), sensors, features, batch)
        x = x.permute(3, 1, 2, 0).reshape(batch * sensors, features * len(found))
        return (x @ self.weight + self.bias).view(batch, sensors, self.leave)


class Cell(nn.Module):
    def __init__(self, enter, supports):
        super().__init__()
        self.gates = DiffusionConv(enter + UNITS, 2 * UNITS, supports, 1.0)
        self.candidate = DiffusionConv(enter + UNITS, UNITS, supports)

    def forward(self, x, hidden):
        reset, update = self.gates(torch.cat([x, hidden], 2)).sigmoid().chunk(2, 2)
        new = self.candidate(torch.cat([x, reset * hidden], 2)).tanh()
        return update * hidden + (1 - update) * new


class DCRNN(nn.Module):
    def __init__(self, supports):
        super().__init__()
        self.encoder = nn.ModuleList(Cell(UNITS if i else ENTER, supports) for i in range(LAYERS))
        self.decoder = nn.ModuleList(Cell(UNITS if i else 1, supports) for i in range(LAYERS))
        self.out, self.rng = nn.Linear(UNITS, 1), np.random.default_rng(2)

    def run(self, cells, x, hidden):
        for i, cell in enumerate(cells):
            x = hidden[i] = cell(x, hidden[i])
        return x

    def forward(self, seen, labels, batches_seen):
        hidden = [seen.new_zeros(seen.shape[1], SENSORS, UNITS) for _ in range(LAYERS)]
        for now in seen:
            self.run(self.encoder, now, hidden)
        x, found = seen.new_zeros(seen.shape[1], SENSORS, 1), []
        threshold = TEACHING / (TEACHING + np.exp(batches_seen / TEACHING))
        for moment in range(AHEAD):
            x = self.out(self.run(self.decoder, x, hidden))
            found.append(x)
            if self.rng.uniform(0, 1) < threshold:
                x = labels[moment]
        return torch.stack(found)


def masked_mae(found, labels):
    """Zeros are sensors that were silent."""
    mask = (labels != 0).float()
    mask = mask / mask.mean()
    return ((found - labels).abs() * mask).nan_to_num().mean()


def speeds(rng):
    """Two waves a day at each sensor, the time of day, and silence now and then; on the device."""
    times = np.arange(MOMENTS)[:, None] / 288
    rush = np.sin(4 * np.pi * (times + rng.uniform(0, 0.2, SENSORS))) + rng.normal(0, 0.2, (MOMENTS, SENSORS))
    rush[rng.uniform(size=rush.shape) < 0.03] = 0.0
    both = np.stack([rush, np.broadcast_to(times % 1, rush.shape)], 2)
    return torch.tensor(both, dtype=torch.float32, device=device)


def main():
    rng = np.random.default_rng(0)
    supports, data = random_walks(rng), speeds(rng)
    with device:
        model = DCRNN(supports)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3, fused=device.type == "cuda")
    window = torch.arange(SEEN + AHEAD, device=device)[:, None]
    lead, began, losses, shown = min(STEPS // 2, 4), 0.0, [], 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = data[window + torch.randint(MOMENTS - SEEN - AHEAD, (BATCH,), device=device)]
        labels = batch[SEEN:, ..., :1]
        loss = masked_mae(model(batch[:SEEN], labels, step), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.detach() if "loss-rarely" in FIX else loss.item())
        if step % 10 == 0 or step == STEPS - 1:
            shown = float(losses[-1])
            print(f"step {step}: mae {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"mae {shown:.5f}; {each:.3f} ms per step")


main()
