"""AlphaZero for gomoku: self-play by Monte Carlo tree search, a residual network judges positions."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 2 if TINY else 6))  # rounds: a move in each game
SIDE, GAMES, SIMULATIONS, WIDTH, BLOCKS = (6, 2, 6, 8, 2) if TINY else (9, 8, 32, 96, 8)
CPUCT, ALPHA, EPSILON = 1.5, 0.3, 0.25
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class ResBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(WIDTH), nn.BatchNorm2d(WIDTH)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


class PolicyValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.blocks = nn.Sequential(*(ResBlock() for _ in range(BLOCKS)))
        self.policy_conv, self.value_conv = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(WIDTH, 1, 1)
        self.policy, self.value1 = nn.Linear(2 * SIDE * SIDE, SIDE * SIDE), nn.Linear(SIDE * SIDE, WIDTH)
        self.value2 = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        logits = self.policy(F.relu(self.policy_conv(x)).flatten(1))
        value = self.value2(F.relu(self.value1(F.relu(self.value_conv(x)).flatten(1))))
        return F.softmax(logits, 1), torch.tanh(value).squeeze(1)


class Board:
    def __init__(self):
        self.cells, self.player, self.last, self.moves = np.zeros((SIDE, SIDE), np.int8), 1, None, 0

    def copy(self):
        other = Board.__new__(Board)
        other.cells, other.player, other.last, other.moves = (
            self.cells.copy(), self.player, self.last, self.moves,
        )  # fmt: skip
        return other

    def play(self, move):
        self.last = divmod(move, SIDE)
        self.cells[self.last] = self.player
        self.player, self.moves = -self.player, self.moves + 1

    def winner(self):
        """The player who has just moved if five lie in a row, 0 if the board is full, else None."""
        if self.last is None:
            return None
        row, column = self.last
        own = self.cells[row, column]
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            count = 1
            for sign in (1, -1):
                r, c = row + sign * down, column + sign * right
                while 0 <= r < SIDE and 0 <= c < SIDE and self.cells[r, c] == own:
                    count, r, c = count + 1, r + sign * down, c + sign * right
            if count >= 5:
                return int(own)
        return 0 if self.moves == SIDE * SIDE else None

    def planes(self):
        planes = np.zeros((3, SIDE, SIDE), np.float32)
        planes[0], planes[1] = self.cells == self.player, self.cells == -self.player
        if self.last is not None:
            planes[2][self.last] = 1
        return planes


class Node:
    def __init__(self, priors, legal):
        self.priors = priors * legal
        self.priors /= self.priors.sum()
        self.legal, self.visits, self.total = legal, np.zeros(len(priors)), np.zeros(len(priors))
        self.children = {}

    def select(self):
        mean = self.total / np.maximum(self.visits, 1)
        score = mean + CPUCT * self.priors * np.sqrt(self.visits.sum() + 1) / (1 + self.visits)
        return int(np.where(self.legal, score, -np.inf).argmax())


@torch.no_grad()
def judge(boards):
    """Priors and values of positions, by the network."""
    planes = torch.from_numpy(np.stack([board.planes() for board in boards])).to(device)
    priors, values = net(planes)
    if "one-read" in FIX:
        both = torch.cat([priors, values[:, None]], 1).cpu().numpy()
        return both[:, :-1], both[:, -1]
    return priors.cpu().numpy(), values.cpu().numpy()


def expand(board, priors):
    return Node(priors.astype(np.float64), board.cells.reshape(-1) == 0)


def backup(path, value):
    for node, move in reversed(path):
        value = -value
        node.visits[move] += 1
        node.total[move] += value


def descend(root, board):
    """Go down to a leaf: the board there, the way, and who has won if the game is over."""
    node, board, path = root, board.copy(), []
    while True:
        move = node.select()
        path.append((node, move))
        board.play(move)
        won = board.winner()
        if won is not None or move not in node.children:
            return board, path, won
        node = node.children[move]


def search(games):
    """A move for each of the games, by as many simulations each."""
    roots = []
    for (board, rng), priors in zip(games, judge([board for board, _ in games])[0], strict=True):
        root = expand(board, priors)
        noise = rng.dirichlet([ALPHA] * SIDE * SIDE) * root.legal
        root.priors = (1 - EPSILON) * root.priors + EPSILON * noise / noise.sum()
        roots.append(root)
    for _ in range(SIMULATIONS):
        leaves = []
        for root, (board, _) in zip(roots, games, strict=True):
            leaf, path, won = descend(root, board)
            if won is not None:
                backup(path, float(won * leaf.player))
            else:
                leaves.append((leaf, path))
        if leaves:
            for (leaf, path), priors, value in zip(leaves, *judge([leaf for leaf, _ in leaves]), strict=True):
                node, move = path[-1]
                node.children[move] = expand(leaf, priors)
                backup(path, float(value))
    return [
        int(rng.choice(SIDE * SIDE, p=root.visits / root.visits.sum()))
        for root, (_, rng) in zip(roots, games, strict=True)
    ]


net = PolicyValueNet().to(device).eval()
rngs = [np.random.default_rng(seed) for seed in range(GAMES)]
boards = [Board() for _ in range(GAMES)]
for many in (1, GAMES):
    judge(boards[:many])
memory, finished, times = [], 0, []
for _turn in range(STEPS):
    began = time.perf_counter()
    games = list(zip(boards, rngs, strict=True))
    moves = search(games) if "games-together" in FIX else [search([game])[0] for game in games]
    for i, move in enumerate(moves):
        memory.append((boards[i].planes(), move))
        boards[i].play(move)
        if boards[i].winner() is not None:
            boards[i], finished = Board(), finished + 1
    times.append((time.perf_counter() - began) / GAMES)
kept = times[min(STEPS // 2, 1) :]
print(f"{len(memory)} positions, {finished} games, move sum {sum(move for _, move in memory)}")
print(f"{1e3 * sum(kept) / len(kept):.3f} ms per move")
