"""Which papers cite each other? A variational graph autoencoder, scored after each epoch."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 40))  # epochs
PAPERS, CITED, TOPICS, WORDS, HIDDEN, CODE, HELD = (
    (40, 3, 4, 12, 8, 4, 20) if TINY else (9000, 4, 40, 1433, 64, 32, 2000)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


def citations():
    """Papers, most of which cite others of their topic: words of each, and pairs (edges, 2)."""
    topics = torch.randint(TOPICS, (PAPERS,))
    by_topic = topics.argsort()
    start = torch.searchsorted(topics[by_topic], topics)
    count = topics.bincount(minlength=TOPICS)[topics]
    cites = torch.arange(PAPERS).repeat_interleave(CITED)
    cited = by_topic[start[cites] + (torch.rand(len(cites)) * count[cites]).long()]
    pairs = torch.stack([cites, cited], 1)
    pairs = torch.unique(pairs[cites != cited].sort(1).values, dim=0)
    words = (torch.rand(PAPERS, WORDS) < 0.02).float()
    words[torch.arange(PAPERS), topics % WORDS] = 1
    return words, pairs[torch.randperm(len(pairs))]


def normalized(pairs):
    """The graph of some pairs with loops, each edge weighed by how many its ends have."""
    loops = torch.arange(PAPERS).repeat(2, 1)
    both = torch.cat([pairs.T, pairs.T.flip(0), loops], 1)
    graph = torch.sparse_coo_tensor(both, torch.ones(both.shape[1]), (PAPERS, PAPERS)).coalesce()
    ends, weights = graph.indices(), torch.bincount(both[0], minlength=PAPERS).float().rsqrt()
    return torch.sparse_coo_tensor(ends, weights[ends].prod(0), (PAPERS, PAPERS)).coalesce()


class VGAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(WORDS, HIDDEN, bias=False)
        self.mean, self.log_std = nn.Linear(HIDDEN, CODE, bias=False), nn.Linear(HIDDEN, CODE, bias=False)

    def forward(self, words, graph):
        x = F.relu(torch.sparse.mm(graph, self.enter(words)))
        mean = torch.sparse.mm(graph, self.mean(x))
        log_std = torch.sparse.mm(graph, self.log_std(x))
        z = mean + torch.randn_like(mean) * log_std.exp()
        return z @ z.T, mean, log_std


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def area_under_curve(right, wrong):
    """How often a right pair has a higher score than a wrong one."""
    order = np.argsort(np.concatenate([right, wrong]), kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    return (ranks[: len(right)].sum() - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong))


def average_precision(right, wrong):
    scores = np.concatenate([right, wrong])
    hits = (np.argsort(-scores, kind="stable") < len(right)).astype(float)
    return (hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)).sum() / len(right)


def get_scores(codes, pairs_right, pairs_wrong):
    if "pairs-only" in FIX:
        both = torch.cat([pairs_right, pairs_wrong]).to(codes.device)
        scores = (codes[both[:, 0]] * codes[both[:, 1]]).sum(1).sigmoid().cpu().numpy()
        right, wrong = scores[: len(pairs_right)], scores[len(pairs_right) :]
    else:
        codes = codes.cpu().numpy()
        again = np.dot(codes, codes.T)
        right = np.array([sigmoid(again[one, other]) for one, other in pairs_right.tolist()])
        wrong = np.array([sigmoid(again[one, other]) for one, other in pairs_wrong.tolist()])
    return area_under_curve(right, wrong), average_precision(right, wrong)


def main():
    words, pairs = citations()
    held, train = pairs[:HELD], pairs[HELD:]
    wrong = torch.randint(PAPERS, (len(held), 2))
    graph, words = normalized(train).to(device), words.to(device)
    label = torch.zeros(PAPERS, PAPERS, device=device)
    ends = train.to(device)
    label[ends[:, 0], ends[:, 1]] = label[ends[:, 1], ends[:, 0]] = 1
    label.fill_diagonal_(1)
    ones = float(label.sum())
    right_weight = torch.tensor((PAPERS**2 - ones) / ones, device=device)
    norm = PAPERS**2 / (2 * (PAPERS**2 - ones))
    with device:
        model = VGAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=device.type == "cuda")
    lead, began, shown, scores = min(STEPS // 2, 4), 0.0, 0.0, (0.0, 0.0)
    for epoch in range(STEPS):
        if epoch == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        logits, mean, log_std = model(words, graph)
        loss = norm * F.binary_cross_entropy_with_logits(logits, label, pos_weight=right_weight)
        spread = (1 + 2 * log_std - mean.square() - log_std.exp().square()).sum(1).mean()
        loss = loss - 0.5 / PAPERS * spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "loss-rarely" not in FIX or epoch % 20 == 0 or epoch == STEPS - 1:
            shown = loss.item()
        if "scores-rarely" not in FIX or epoch % 20 == 0 or epoch == STEPS - 1:
            scores = get_scores(mean.detach(), held, wrong)
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {shown:.4f}, area {scores[0]:.4f}, precision {scores[1]:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    area, precision = scores
    print(f"loss {shown:.5f}, area {area:.5f}, precision {precision:.5f}; {each:.3f} ms per epoch")


main()
