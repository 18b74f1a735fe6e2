"""Forms filled in from documents: a language model whose answers have to be JSON, token by token."""

import os
import queue
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 400))  # tokens of each answer, all batches together
BATCH, PROMPT, ANSWER, VOCAB, WIDE, INNER, HEAD, LAYERS = (
    (2, 6, 6, 64, 32, 48, 16, 1) if TINY else (16, 256, 64, 32_000, 1536, 4096, 64, 10)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class Grammar:
    """An object of keys with texts or numbers: which tokens may come next, and what state they lead to."""

    KINDS = ("open", "close", "quote", "colon", "comma", "digit", "text")
    RULES = {  # noqa: RUF012
        "begin": {"open": "key"},
        "key": {"quote": "name"},
        "name": {"text": "name", "quote": "named"},
        "named": {"colon": "value"},
        "value": {"quote": "words", "digit": "number"},
        "words": {"text": "words", "quote": "done"},
        "number": {"digit": "number", "comma": "key", "close": "end"},
        "done": {"comma": "key", "close": "end"},
        "end": {"open": "key"},
    }

    def __init__(self):
        self.kinds = ["text"] * VOCAB
        for token in range(VOCAB // 8):
            self.kinds[token] = self.KINDS[min(token, 5)]
        self.tokens = {kind: [] for kind in self.KINDS}
        for token, kind in enumerate(self.kinds):
            self.tokens[kind].append(token)
        self.masks = {}

    def allowed(self, state):
        return [token for kind in self.RULES[state] for token in self.tokens[kind]]

    def advance(self, state, token):
        return self.RULES[state][self.kinds[token]]

    def mask(self, state):
        """Zero where a token may come, minus infinity elsewhere."""
        mask = torch.full((VOCAB,), float("-inf"))
        mask[self.allowed(state)] = 0
        return mask


class GrammarProcessor:
    def __init__(self, grammar):
        self.grammar, self.kept = grammar, {}

    def on_device(self, state):
        if state not in self.kept:
            self.kept[state] = self.grammar.mask(state).to(device)
        return self.kept[state]

    def __call__(self, logits, states):
        if "masks-kept" in FIX:
            return logits + torch.stack([self.on_device(state) for state in states])
        masks = torch.stack([self.grammar.mask(state) for state in states])
        if "pinned" in FIX and device.type == "cuda":
            masks = masks.pin_memory()
        return logits + masks.to(device, non_blocking=True)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.gate, self.up = nn.Linear(WIDE, INNER, bias=False), nn.Linear(WIDE, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def forward(self, x, keys, values, at):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        until = at + x.shape[1]
        keys[:, :, at:until], values[:, :, at:until] = k, v
        y = F.scaled_dot_product_attention(q, keys[:, :, :until], values[:, :, :until], is_causal=at == 0)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDE), nn.Embedding(PROMPT + ANSWER, WIDE)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDE), nn.Linear(WIDE, VOCAB, bias=False)
        shape = (LAYERS, 2, BATCH, WIDE // HEAD, PROMPT + ANSWER, HEAD)
        self.register_buffer("cache", torch.zeros(shape), persistent=False)

    def forward(self, words, at):
        x = self.words(words) + self.places.weight[at : at + words.shape[1]]
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            x = layer(x, keys, values, at)
        return self.head(self.norm(x[:, -1])).float()


@torch.inference_mode()
def fill_in(documents, tokens):
    """Answers to a batch of documents, of so many tokens."""
    states, answers = ["begin"] * BATCH, []
    logits = model(documents.to(device), 0)
    for i in range(tokens):
        chances = processor(logits, states).softmax(-1)
        chosen = torch.multinomial(chances, 1)
        picked = chosen[:, 0].tolist()
        answers.append(picked)
        states = [grammar.advance(*one) for one in zip(states, picked, strict=True)]
        if i + 1 < tokens:
            logits = model(chosen, PROMPT + i)
    return answers


def serve(requests, answered):
    while (request := requests.get()) is not None:
        documents, tokens = request
        answers = fill_in(documents, tokens)
        answered.put((time.perf_counter(), len(answers), sum(map(sum, answers))))


with device:
    model = Model().to(dtype).eval()
grammar = Grammar()
processor = GrammarProcessor(grammar)
requests, answered = queue.Queue(), queue.Queue()
server = threading.Thread(target=serve, args=(requests, answered))
server.start()
generator = torch.Generator().manual_seed(0)
requests.put((torch.randint(VOCAB, (BATCH, PROMPT), generator=generator), 2))
answered.get()
began, sent = time.perf_counter(), 0
while sent < STEPS:
    tokens = min(ANSWER, STEPS - sent)
    requests.put((torch.randint(VOCAB, (BATCH, PROMPT), generator=generator), tokens))
    sent += tokens
requests.put(None)
server.join()
batches = [answered.get() for _ in range(answered.qsize())]
each = 1e3 * (batches[-1][0] - began) / STEPS
print(f"{len(batches)} batches, {sum(total for _, _, total in batches)} in all; {each:.3f} ms per token")
