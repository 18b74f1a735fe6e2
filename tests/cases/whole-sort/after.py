"""The best hundred alone."""

import torch
import torch.nn.functional as F

QUESTIONS, PASSAGES, WIDTH, BEST = 128, 300_000, 256, 100


def build(device):
    torch.manual_seed(0)
    questions = F.normalize(torch.randn(QUESTIONS, WIDTH, device=device), dim=1)
    passages = F.normalize(torch.randn(PASSAGES, WIDTH, device=device), dim=1)

    def step():
        scores = questions @ passages.T
        best = scores.topk(BEST, dim=1).indices
        return passages[best].mean(1)

    return step
