"""A test of what is recommended for playlists: are the hidden songs among the first fifty of all songs?"""

import os
import time

import numpy as np
import torch

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 250))
LISTS, SONGS, BATCH, WIDE, HIDDEN, FIRST, LONGEST = (
    (60, 100, 8, 8, 3, 10, 12) if TINY else (40960, 100_000, 1024, 128, 10, 50, 160)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Playlists:
    """Which songs a playlist has, and which are hidden for the test."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.counts = rng.integers(LONGEST // 4, LONGEST, LISTS)
        self.ends = np.cumsum(self.counts)
        self.flat = rng.integers(0, SONGS, self.ends[-1])
        self.seen = {
            i: self.flat[end - many : end].tolist()
            for i, (end, many) in enumerate(zip(self.ends, self.counts, strict=True))
        }
        self.hidden = torch.from_numpy(rng.integers(0, SONGS, (LISTS, HIDDEN))).to(device)

    def seen_of(self, lists):
        return [self.seen[i] for i in lists]


class Seen:
    """The same songs on the device, one playlist behind the other."""

    def __init__(self, playlists):
        self.ends = [0, *playlists.ends.tolist()]
        self.songs = torch.from_numpy(playlists.flat).to(device)
        self.counts = torch.from_numpy(playlists.counts).to(device)
        self.places = torch.arange(BATCH, device=device)

    def of(self, begin):
        start, end = self.ends[begin], self.ends[begin + BATCH]
        counts = self.counts[begin : begin + BATCH]
        return self.places.repeat_interleave(counts, output_size=end - start), self.songs[start:end]


def main():
    playlists = Playlists()
    with torch.no_grad():
        songs = torch.nn.Embedding(SONGS, WIDE, device=device).weight
        taste = songs[playlists.hidden].mean(1) + 0.4 * torch.randn(LISTS, WIDE, device=device)
        discount = 1 / torch.log2(torch.arange(FIRST, device=device) + 2.0)
        best = discount[: min(HIDDEN, FIRST)].sum()
    seen = Seen(playlists) if "seen-on-device" in FIX else None
    lead, began, recalls, ndcgs, shown = min(STEPS // 2, 8), 0.0, [], [], 0.0
    for step in range(STEPS):
        if step == lead:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        begin = step * BATCH % (LISTS - LISTS % BATCH)
        lists = range(begin, begin + BATCH)
        with torch.no_grad():
            rating = taste[begin : begin + BATCH] @ songs.T
            if seen is not None:
                rating[seen.of(begin)] = -(1 << 10)
            else:
                exclude_index, exclude_songs = [], []
                for i, known in enumerate(playlists.seen_of(lists)):
                    exclude_index.extend([i] * len(known))
                    exclude_songs.extend(known)
                rating[exclude_index, exclude_songs] = -(1 << 10)
            top = rating.topk(FIRST).indices
            hits = (top[:, :, None] == playlists.hidden[begin : begin + BATCH, None]).any(2).float()
            recalls.append((hits.sum(1) / HIDDEN).mean())
            ndcgs.append(((hits * discount).sum(1) / best).mean())
        if "figures-rarely" not in FIX or step % 20 == 0 or step == STEPS - 1:
            shown = recalls[-1].item()
        if step % 50 == 0:
            print(f"batch {step}: recall {shown:.4f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    recall, ndcg = (torch.stack(figures).mean().item() for figures in (recalls, ndcgs))
    print(f"recall {recall:.5f}, ndcg {ndcg:.5f}; {each:.3f} ms per batch")


main()
