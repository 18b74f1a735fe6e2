"""A neural Hawkes process: which event comes next, and when, by an LSTM whose cells drift with time."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 30))
SEQUENCES, BATCH, LONGEST, TYPES, HIDDEN, SAMPLES = (
    (16, 4, 8, 5, 8, 2) if TINY else (1024, 64, 80, 22, 128, 10)
)
PAD = TYPES
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class CTLSTMCell(nn.Module):
    """Seven gates; the cell drifts from c to c_target with time."""

    def __init__(self):
        super().__init__()
        self.input, self.forget, self.output, self.cell = (nn.Linear(2 * HIDDEN, HIDDEN) for _ in range(4))
        self.input_target, self.forget_target, self.decay = (nn.Linear(2 * HIDDEN, HIDDEN) for _ in range(3))

    def gates(self):
        """All weights in one matrix, for one product a step."""
        layers = (
            self.input, self.forget, self.output, self.input_target, self.forget_target, self.cell, self.decay
        )  # fmt: skip
        return torch.cat([one.weight for one in layers]), torch.cat([one.bias for one in layers])

    def forward(self, x, h, c, c_target, together=None):
        v = torch.cat([x, h], -1)
        if together is not None:
            sigmoids, z, decay = F.linear(v, *together).split([5 * HIDDEN, HIDDEN, HIDDEN], -1)
            i, f, o, i_target, f_target = torch.sigmoid(sigmoids).chunk(5, -1)
            z, decay = torch.tanh(z), F.softplus(decay)
        else:
            i = torch.sigmoid(self.input(v))
            f = torch.sigmoid(self.forget(v))
            o = torch.sigmoid(self.output(v))
            i_target = torch.sigmoid(self.input_target(v))
            f_target = torch.sigmoid(self.forget_target(v))
            z = torch.tanh(self.cell(v))
            decay = F.softplus(self.decay(v))
        return f * c + i * z, f_target * c_target + i_target * z, o, decay


class NeuralHawkes(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TYPES + 1, HIDDEN, padding_idx=PAD)
        self.rnn, self.intensity = CTLSTMCell(), nn.Linear(HIDDEN, TYPES, bias=False)
        self.scale = nn.Parameter(torch.zeros(TYPES))

    @staticmethod
    def at(c, c_target, o, decay, gap):
        return o * torch.tanh(c_target + (c - c_target) * torch.exp(-decay * gap))

    def rates(self, h):
        scale = self.scale.exp()
        return scale * F.softplus(self.intensity(h) / scale)

    def forward(self, kinds, gaps):
        """States after each event, and what h has become at the next."""
        h = torch.zeros(len(kinds), HIDDEN, device=kinds.device)
        c, c_target = torch.zeros_like(h), torch.zeros_like(h)
        together = self.rnn.gates() if "gates-at-once" in FIX else None
        x = self.embed(kinds)
        events = x.unbind(1) if "unbind" in FIX else None
        states, left = [], []
        for t in range(kinds.size(1) - 1):
            c, c_target, o, decay = self.rnn(
                x[:, t] if events is None else events[t], h, c, c_target, together
            )
            states.append(torch.stack([c, c_target, o, decay]))
            gap = gaps[:, t + 1, None]
            c = c_target + (c - c_target) * torch.exp(-decay * gap)
            h = o * torch.tanh(c)
            left.append(h)
        return torch.stack(states, 2), torch.stack(left, 1)

    def log_likelihood(self, kinds, gaps):
        states, left = self(kinds, gaps)
        following, keep = kinds[:, 1:], kinds[:, 1:] != PAD
        rates = self.rates(left)
        right = rates.argmax(-1) == following
        index = following.clamp(max=TYPES - 1)[..., None]
        events = (torch.log(rates.gather(-1, index).squeeze(-1) + 1e-9) * keep).sum()
        drawn = torch.rand(SAMPLES, *gaps[:, 1:].shape, device=gaps.device) * gaps[:, 1:]
        h = self.at(*(one[None] for one in states), drawn[..., None])
        integral = (self.rates(h).sum(-1).mean(0) * gaps[:, 1:] * keep).sum()
        return events - integral, (right & keep).sum(), keep.sum()


def sequences():
    """Kinds that call each other, at gaps that shrink after some of them."""
    kinds = torch.full((SEQUENCES, LONGEST), PAD)
    gaps = torch.zeros(SEQUENCES, LONGEST)
    for i in range(SEQUENCES):
        n = int(torch.randint(3 * LONGEST // 4, LONGEST + 1, ()))
        kinds[i, :n] = torch.randint(3, (n,)).cumsum(0) % TYPES
        gaps[i, :n] = torch.rand(n).log().neg() * (0.2 + (kinds[i, :n] % 3) / 3)
    return kinds, gaps


kinds, gaps = (one.to(device) for one in sequences())
model = NeuralHawkes().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step, times, shown = 0, [], 0.0
while step < STEPS:
    order = torch.randperm(SEQUENCES, device=device)
    for rows in order.split(BATCH):
        if step == STEPS:
            break
        began = time.perf_counter()
        likelihood, right, events = model.log_likelihood(kinds[rows], gaps[rows])
        loss = -likelihood / events
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown, accuracy = loss.item(), right.item() / events.item()
        times.append(time.perf_counter() - began)
        if step % 10 == 0:
            print(f"step {step}: loglikelihood {-shown:.4f} an event, accuracy {accuracy:.3f}")
        step += 1
kept = times[min(STEPS // 2, 5) :]
print(f"loglikelihood {-shown:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per batch")
