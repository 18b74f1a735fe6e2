"""MAML on characters, second order: five ways, one example of each, five steps within a task."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 10))
TASKS, WAYS, SHOTS, QUERIES, INNER_STEPS, WIDTH = (3, 5, 1, 3, 2, 4) if TINY else (16, 5, 1, 15, 5, 64)
UPDATE_LR, META_LR, CHARACTERS, SIDE = 0.1, 1e-3, 200, 28
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(222)
rng = np.random.default_rng(222)


class Learner(nn.Module):
    """Four convolutions and a linear layer that may be run with other weights than its own."""

    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList()
        a = 1
        for _ in range(4):
            w = torch.empty(WIDTH, a, 3, 3)
            nn.init.kaiming_normal_(w)
            self.vars.extend([nn.Parameter(w), nn.Parameter(torch.zeros(WIDTH))])
            self.vars.extend([nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))])
            a = WIDTH
        w = torch.empty(WAYS, WIDTH)
        nn.init.kaiming_normal_(w)
        self.vars.extend([nn.Parameter(w), nn.Parameter(torch.zeros(WAYS))])

    def forward(self, x, vars=None):
        vars = list(self.vars) if vars is None else vars
        for i in range(0, 16, 4):
            w, b, scale, shift = vars[i : i + 4]
            x = F.conv2d(x, w, b, stride=2, padding=1)
            x = F.relu(F.batch_norm(x, None, None, scale, shift, training=True))
        return F.linear(x.mean((2, 3)), vars[16], vars[17])


class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Learner()
        self.meta_optim = torch.optim.Adam(self.net.parameters(), lr=META_LR)

    def forward(self, x_spt, y_spt, x_qry, y_qry):
        """Adapt to each task, and step on the mean loss of the adapted weights."""
        if "tasks-at-once" in FIX:
            loss_q, corrects = self.all_tasks(x_spt, y_spt, x_qry, y_qry)
        else:
            losses_q, corrects = [], [0.0 for _ in range(2)]
            for i in range(len(x_spt)):
                with torch.no_grad():
                    corrects[0] += self.count(self.net(x_qry[i]), y_qry[i])
                fast_weights = list(self.net.parameters())
                for _ in range(INNER_STEPS):
                    loss = F.cross_entropy(self.net(x_spt[i], fast_weights), y_spt[i])
                    grad = torch.autograd.grad(loss, fast_weights, create_graph=True)
                    pairs = zip(grad, fast_weights, strict=True)
                    fast_weights = [p - UPDATE_LR * g for g, p in pairs]
                logits_q = self.net(x_qry[i], fast_weights)
                losses_q.append(F.cross_entropy(logits_q, y_qry[i]))
                corrects[1] += self.count(logits_q, y_qry[i])
            loss_q = sum(losses_q) / len(losses_q)
        self.meta_optim.zero_grad()
        loss_q.backward()
        self.meta_optim.step()
        if "corrects-on-device" in FIX or "tasks-at-once" in FIX:
            corrects = [one.item() for one in corrects]
        return loss_q, np.array(corrects) / (len(x_spt) * y_qry.shape[1])

    def count(self, logits, y):
        correct = torch.eq(F.softmax(logits, dim=1).argmax(dim=1), y).sum()
        return correct if "corrects-on-device" in FIX else correct.item()

    def all_tasks(self, *tasks):
        """All tasks through one network whose weights have a dimension for the task."""

        def support_loss(weights, x, y):
            return F.cross_entropy(self.net(x, weights), y)

        def one(weights, x_spt, y_spt, x_qry, y_qry):
            before = (self.net(x_qry, weights).argmax(1) == y_qry).sum()
            for _ in range(INNER_STEPS):
                grad = torch.func.grad(support_loss)(weights, x_spt, y_spt)
                weights = [p - UPDATE_LR * g for g, p in zip(grad, weights, strict=True)]
            logits_q = self.net(x_qry, weights)
            return F.cross_entropy(logits_q, y_qry), before, (logits_q.argmax(1) == y_qry).sum()

        loss, before, after = torch.func.vmap(one, (None, 0, 0, 0, 0))(list(self.net.vars), *tasks)
        return loss.mean(), [before.sum(), after.sum()]


class Characters:
    """Strokes between random points, twenty drawings of each; the next batches wait in a cache."""

    def __init__(self):
        base = rng.random((CHARACTERS, 1, SIDE, SIDE)) < 0.15
        flipped = rng.random((CHARACTERS, 20, SIDE, SIDE)) < 0.03
        self.x = (base ^ flipped).astype(np.float32)[:, :, None]
        self.cache = []

    def load_batch(self):
        spt, qry = [], []
        for _ in range(TASKS):
            for kind in rng.choice(CHARACTERS, WAYS, False):
                chosen = rng.choice(20, SHOTS + QUERIES, False)
                spt.append(self.x[kind][chosen[:SHOTS]])
                qry.append(self.x[kind][chosen[SHOTS:]])
        y = np.arange(WAYS)[None].repeat(TASKS, 0)
        x_spt, x_qry = (np.stack(one).reshape(TASKS, -1, 1, SIDE, SIDE) for one in (spt, qry))
        return x_spt, y.repeat(SHOTS, 1), x_qry, y.repeat(QUERIES, 1)

    def next(self):
        if not self.cache:
            self.cache = [self.load_batch() for _ in range(10)]
        return [torch.from_numpy(one).to(device) for one in self.cache.pop()]


db_train, maml = Characters(), Meta().to(device)
times, losses = [], []
for step in range(STEPS):
    began = time.time()
    loss, accs = maml(*db_train.next())
    losses.append(loss.item())
    times.append(time.time() - began)
    if step % 5 == 0:
        print(f"step: {step} \ttraining acc: {accs} loss {losses[-1]:.4f}")
kept = times[min(STEPS // 2, 3) :]
print(f"loss {losses[-1]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per meta-step")
