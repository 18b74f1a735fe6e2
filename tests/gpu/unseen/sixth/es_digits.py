"""Evolution strategies: a perceptron for digits without gradients, mirrored noise, ranks as rewards."""

import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 15))  # generations
POPULATION, BATCH, PIXELS, HIDDEN, CLASSES = (6, 16, 20, 8, 4) if TINY else (50, 2000, 784, 256, 10)
SIGMA, LEARNING_RATE, DECAY = 0.05, 0.1, 0.999
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
np.random.seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x):
        return self.layers(x)


class EvolutionStrategy:
    def __init__(self, net, fitness):
        self.net, self.fitness = net, fitness
        self.weights = [p.detach().cpu().numpy().astype(np.float64) for p in net.parameters()]
        self.rate = LEARNING_RATE

    def load(self, noise, sign):
        """Weights of one member of the population, onto the device."""
        with torch.no_grad():
            for p, w, e in zip(self.net.parameters(), self.weights, noise, strict=True):
                p.copy_(torch.from_numpy(w + sign * SIGMA * e))

    def generation(self):
        noises = [[np.random.randn(*w.shape) for w in self.weights] for _ in range(POPULATION // 2)]
        rewards = []
        for noise in noises:
            for sign in (1, -1):
                self.load(noise, sign)
                rewards.append(self.fitness(self.net))
        if "fitness-together" in FIX:
            rewards = torch.stack(rewards).tolist()
        ranks = np.argsort(np.argsort(rewards)) / (len(rewards) - 1) - 0.5
        differences = ranks[0::2] - ranks[1::2]
        for i, w in enumerate(self.weights):
            gradient = sum(d * noise[i] for d, noise in zip(differences, noises, strict=True))
            self.weights[i] = w + self.rate / (len(rewards) * SIGMA) * gradient
        self.rate *= DECAY
        return max(rewards), float(np.mean(rewards))


class EvolutionOnDevice(EvolutionStrategy):
    """Weights and noise never leave the device."""

    def __init__(self, net, fitness):
        super().__init__(net, fitness)
        self.weights = [p.detach().clone() for p in net.parameters()]

    def load(self, noise, sign):
        with torch.no_grad():
            for p, w, e in zip(self.net.parameters(), self.weights, noise, strict=True):
                torch.add(w, e, alpha=sign * SIGMA, out=p.data)

    @torch.no_grad()
    def generation(self):
        many = POPULATION // 2
        noises = [torch.randn(many, *w.shape, device=device) for w in self.weights]
        rewards = []
        for k in range(many):
            for sign in (1, -1):
                self.load([noise[k] for noise in noises], sign)
                rewards.append(self.fitness(self.net))
        if "fitness-together" in FIX:
            rewards = torch.stack(rewards).tolist()
        ranks = np.argsort(np.argsort(rewards)) / (len(rewards) - 1) - 0.5
        differences = torch.tensor(ranks[0::2] - ranks[1::2], dtype=torch.float32, device=device)
        for w, noise in zip(self.weights, noises, strict=True):
            w.add_(torch.tensordot(differences, noise, 1), alpha=self.rate / (len(rewards) * SIGMA))
        self.rate *= DECAY
        return max(rewards), float(np.mean(rewards))


prototypes = torch.rand(CLASSES, PIXELS, device=device)
labels = torch.randint(CLASSES, (16 * BATCH,), device=device)
pictures = prototypes[labels] + 0.5 * torch.randn(16 * BATCH, PIXELS, device=device)


@torch.no_grad()
def fitness(net):
    """Minus the loss on this generation's pictures."""
    reward = -nn.functional.cross_entropy(net(pictures[rows]), labels[rows])
    return reward if "fitness-together" in FIX else reward.item()


net = Net().to(device)
es = (EvolutionOnDevice if "noise-on-device" in FIX else EvolutionStrategy)(net, fitness)
times = []
for generation in range(STEPS):
    began = time.perf_counter()
    start = int(torch.randint(15 * BATCH, ()))
    rows = slice(start, start + BATCH)
    best, mean = es.generation()
    times.append(time.perf_counter() - began)
    if generation % 10 == 0:
        print(f"iter {generation}. reward: {mean:.4f}, best {best:.4f}")
kept = times[min(STEPS // 2, 2) :]
print(f"reward {mean:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms per generation")
