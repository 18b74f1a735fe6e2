"""Which article is shown? A bandit with a network, which prefers what it does not know well yet."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 200))  # rounds
ARTICLES, ARMS, SEEN, WIDE, BATCH, LEARN = (40, 6, 8, 16, 8, 2) if TINY else (20000, 50, 192, 256, 128, 4)
LAMBDA, NU = 1.0, 0.1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(SEEN, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 1)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class NeuralUCB:
    def __init__(self):
        self.func = Network().to(device)
        self.optimizer = torch.optim.SGD(self.func.parameters(), lr=1e-2, weight_decay=1e-4)
        self.total = sum(p.numel() for p in self.func.parameters())
        self.U = LAMBDA * torch.ones(self.total, device=device)
        self.contexts = torch.zeros(STEPS, SEEN, device=device)
        self.rewards = torch.zeros(STEPS, device=device)
        self.long = 0

    def select(self, contexts):
        """The arm with the best chance, as far as is known; its gradient says what becomes known."""
        if "gradients-together" in FIX:
            return self.select_together(contexts)
        mu = self.func(contexts)
        gradients, samples = [], []
        for fx in mu:
            self.func.zero_grad()
            fx.backward(retain_graph=True)
            g = torch.cat([p.grad.flatten().detach() for p in self.func.parameters()])
            gradients.append(g)
            sigma = torch.sqrt(torch.sum(LAMBDA * NU * g * g / self.U))
            if "read-once" in FIX:
                samples.append(fx.detach()[0] + sigma)
            else:
                samples.append(fx.item() + sigma.item())
        if "read-once" in FIX:
            samples = torch.stack(samples).tolist()
        arm = max(range(ARMS), key=samples.__getitem__)
        self.U += gradients[arm] * gradients[arm]
        return arm, samples[arm]

    def select_together(self, contexts):
        weights = {name: p.detach() for name, p in self.func.named_parameters()}

        def value(weights, context):
            fx = torch.func.functional_call(self.func, weights, (context,))[0]
            return fx, fx

        each = torch.func.vmap(torch.func.grad(value, has_aux=True), (None, 0))
        gradients, mu = each(weights, contexts)
        g = torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
        samples = mu + torch.sqrt(torch.sum(LAMBDA * NU * g * g / self.U, 1))
        best, arm = samples.max(0)
        best, arm = torch.stack([best, arm.to(best.dtype)]).tolist()
        arm = int(arm)
        self.U += g[arm] * g[arm]
        return arm, best

    def train(self, context, reward):
        self.contexts[self.long], self.rewards[self.long] = context, reward
        self.long += 1
        for _ in range(LEARN):
            rows = torch.randint(self.long, (BATCH,), device=device)
            loss = F.mse_loss(self.func(self.contexts[rows])[:, 0], self.rewards[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main():
    articles = F.normalize(torch.randn(ARTICLES, SEEN, device=device), dim=1)
    liked = F.normalize(torch.randn(SEEN, device=device), dim=0)
    clicks = torch.sigmoid(10 * articles @ liked)
    bandit = NeuralUCB()
    lead, began, regret, best, loss = min(STEPS // 2, 10), 0.0, 0.0, 0.0, 0.0
    for round_ in range(STEPS):
        if round_ == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        offered = torch.randint(ARTICLES, (ARMS,), device=device)
        arm, best = bandit.select(articles[offered])
        chances = clicks[offered]
        regret += (chances.max() - chances[arm]).item()
        loss = bandit.train(articles[offered[arm]], chances[arm])
        if round_ % 50 == 0:
            print(f"round {round_}: regret {regret:.3f}, loss {loss:.4f}, best {best:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"regret {regret:.4f}, loss {loss:.6f}, best {best:.5f}; {each:.3f} ms per round")


main()
