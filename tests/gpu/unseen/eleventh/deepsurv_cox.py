"""Who dies sooner? A network for risks of patients, by Cox' partial likelihood."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 150))
PATIENTS, BATCH, FEATURES, WIDTH, LAYERS = (64, 32, 6, 16, 2) if TINY else (262_144, 32_768, 96, 512, 4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def cohort():
    """Patients by what is known of them, how long they were seen (no two alike), and whether they died."""
    x = torch.randn(PATIENTS, FEATURES, device=device)
    risk = x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.5 * x[:, 3]
    until = torch.empty(PATIENTS, device=device).exponential_() * torch.exp(-risk)
    gone = torch.empty(PATIENTS, device=device).exponential_(0.5)
    days = torch.minimum(until, gone).argsort().argsort().float() + 1
    return x, days, (until <= gone).float()


class DeepSurv(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [FEATURES] + [WIDTH] * LAYERS
        layers = []
        for i in range(LAYERS):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1)]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.net(x)


class NegativeLogLikelihood(nn.Module):
    """Of those who were still there when a patient died, how likely was it this one?"""

    def forward(self, risk, days, died):
        if "sorted" in FIX:
            return self.of_sorted(risk[:, 0], days, died[:, 0])
        mask = torch.ones(len(days), len(days), device=days.device)
        mask[(days.T - days) > 0] = 0  # who was gone before
        log_loss = torch.exp(risk) * mask
        log_loss = torch.sum(log_loss, dim=0) / torch.sum(mask, dim=0)
        log_loss = torch.log(log_loss).reshape(-1, 1)
        return -torch.sum((risk - log_loss) * died) / torch.sum(died)

    def of_sorted(self, risk, days, died):
        order = days[:, 0].argsort(descending=True)
        risk, died = risk[order], died[order]
        there = torch.arange(1, len(risk) + 1, device=risk.device)
        log_loss = risk.logcumsumexp(0) - there.log()
        return -((risk - log_loss) * died).sum() / died.sum()


def main():
    x, days, died = cohort()
    model, criterion = DeepSurv().to(device), NegativeLogLikelihood()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=device.type == "cuda")
    lead, began, shown = min(STEPS // 2, 4), 0.0, 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        chosen = torch.randperm(PATIENTS, device=device)[:BATCH]
        risk = model(x[chosen])
        loss = criterion(risk, days[chosen, None], died[chosen, None])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if "loss-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = loss.item()
        if step % 50 == 0:
            print(f"step {step}: loss {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}; {each:.3f} ms per step")


main()
