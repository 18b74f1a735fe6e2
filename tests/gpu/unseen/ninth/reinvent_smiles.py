"""Write molecules that score well: a recurrent agent is led away from its prior by what it samples."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 60))
MOLECULES, LONGEST, EMBEDDED, HIDDEN, LAYERS = (4, 8, 8, 16, 2) if TINY else (64, 80, 128, 512, 3)
TOKENS = ["<end>", "<start>", "C", "c", "N", "n", "O", "o", "S", "s", "F", "Cl", "Br", "(", ")", "=", "#"]
TOKENS += ["1", "2", "3", "4", "[nH]", "[O-]", "[N+]", "/", "\\", "-", "[C@H]", "[C@@H]", "P", "I"]
END, START, SIGMA = 0, 1, 20.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(TOKENS), EMBEDDED)
        self.gru = nn.GRU(EMBEDDED, HIDDEN, LAYERS, batch_first=True)
        self.out = nn.Linear(HIDDEN, len(TOKENS))

    def forward(self, tokens, hidden=None):
        x, hidden = self.gru(self.embedding(tokens), hidden)
        return self.out(x), hidden

    @torch.no_grad()
    def sample(self):
        """Tokens of all molecules, one place after the other."""
        token = torch.full((MOLECULES, 1), START, device=device)
        finished, hidden, written = torch.zeros(MOLECULES, dtype=torch.bool, device=device), None, []
        for place in range(LONGEST):
            logits, hidden = self(token, hidden)
            token = torch.multinomial(F.softmax(logits[:, 0], 1), 1)
            token = token.masked_fill(finished[:, None], END)
            written.append(token)
            finished = finished | (token[:, 0] == END)
            if ("end-asked-rarely" not in FIX or place % 10 == 9) and finished.all():
                break
        return torch.cat(written, 1)

    def likelihood(self, tokens):
        """Of each molecule: the sum over its tokens, and over its end."""
        start = torch.full((len(tokens), 1), START, device=device)
        given, total = torch.cat([start, tokens[:, :-1]], 1), torch.zeros(len(tokens), device=device)
        before = torch.cat([torch.zeros_like(start), (tokens[:, :-1] == END).long().cummax(1).values], 1)
        if "whole-sequences" in FIX:
            logits, _ = self(given)
            each = F.log_softmax(logits, 2).gather(2, tokens[:, :, None]).squeeze(2)
            return (each * (1 - before)).sum(1)
        hidden = None
        for place in range(tokens.shape[1]):
            logits, hidden = self(given[:, place : place + 1], hidden)
            each = F.log_softmax(logits[:, 0], 1).gather(1, tokens[:, place : place + 1]).squeeze(1)
            total = total + each * (1 - before[:, place])
        return total


def score(tokens):
    """Brackets in pairs and some nitrogen are liked."""
    scores = []
    for row in tokens.tolist():
        text = [TOKENS[one] for one in (row[: row.index(END)] if END in row else row)]
        depth, right = 0, True
        for one in text:
            depth += (one == "(") - (one == ")")
            right = right and depth >= 0
        likes = sum(one in ("N", "n", "[nH]") for one in text) / max(len(text), 1)
        scores.append(0.5 * (right and depth == 0) + 0.5 * min(4 * likes, 1.0))
    return torch.tensor(scores, device=device)


prior, agent = Writer().to(device), Writer().to(device)
agent.load_state_dict(prior.state_dict())
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
times, shown = [], (0.0, 0.0)
for _ in range(STEPS):
    began = time.perf_counter()
    tokens = agent.sample()
    scores = score(tokens)
    agents = agent.likelihood(tokens)
    with torch.no_grad():
        priors = prior.likelihood(tokens)
    loss = (priors + SIGMA * scores - agents).pow(2).mean() - 5e3 * (1 / agents).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.item(), scores.mean().item()
    times.append(time.perf_counter() - began)
kept = times[min(STEPS // 2, 3) :]
print(f"loss {shown[0]:.4f}, score {shown[1]:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")
