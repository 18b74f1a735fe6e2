"""Which queue does a ticket go to? One language model for many customers, each with its own adapters."""

import contextlib
import os
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 12 if TINY else 500))  # tickets that are answered
CLIENTS, TENANTS, WIDTH, INNER, LAYERS, HEAD, RANK, LENGTH, VOCAB, QUEUES = (
    (2, 3, 32, 48, 1, 16, 2, 16, 60, 4) if TINY else (4, 8, 4096, 11_008, 8, 128, 16, 512, 32_000, 12)
)
THINKING, SCALING = 0.002, 2.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
torch.manual_seed(0)
torch.set_num_threads(1)


class LoraLinear(nn.Module):
    """A frozen layer with a small correction for each tenant, by the side or added to the weights."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device, dtype=dtype).normal_(0, 0.02))
        self.down = nn.ParameterList(self.small(RANK, inputs) for _ in range(TENANTS))
        self.up = nn.ParameterList(self.small(outputs, RANK) for _ in range(TENANTS))
        self.tenant = None

    @staticmethod
    def small(rows, columns):
        return nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype).normal_(0, 0.01))

    def delta(self, tenant):
        return (self.up[tenant] @ self.down[tenant]) * SCALING

    def merge(self, tenant):
        self.weight += self.delta(tenant)

    def unmerge(self, tenant):
        self.weight -= self.delta(tenant)

    def forward(self, x):
        y = F.linear(x, self.weight)
        if self.tenant is not None:
            y = y + F.linear(F.linear(x, self.down[self.tenant]), self.up[self.tenant]) * SCALING
        return y


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(WIDTH, device=device, dtype=dtype) for _ in range(2))
        self.q, self.k, self.v, self.o = (LoraLinear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = LoraLinear(WIDTH, INNER), LoraLinear(WIDTH, INNER)
        self.down = LoraLinear(INNER, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TicketModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH, device=device, dtype=dtype)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, device=device, dtype=dtype)
        self.queues = nn.Linear(WIDTH, QUEUES, device=device, dtype=dtype)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.queues(self.norm(x[:, -1])).float()


class Service:
    """One model on one device, hence a lock; it speaks for one tenant at a time."""

    def __init__(self):
        self.model, self.lock = TicketModel().eval(), threading.Lock()
        self.adapted = [module for module in self.model.modules() if isinstance(module, LoraLinear)]

    @contextlib.contextmanager
    def speaking_for(self, tenant):
        if "by-the-side" in FIX:
            for layer in self.adapted:
                layer.tenant = tenant
            yield
            return
        for layer in self.adapted:
            layer.merge(tenant)
        try:
            yield
        finally:
            for layer in self.adapted:
                layer.unmerge(tenant)

    @torch.inference_mode()
    def route(self, tenant, ticket):
        with self.lock, self.speaking_for(tenant):
            if "pinned" in FIX and device.type == "cuda":
                ticket = ticket.pin_memory()
            words = ticket.to(device, non_blocking=True)[None]
            return self.model(words).softmax(-1)[0].cpu()


def work(number):
    """A support desk that serves all customers: reads a ticket, asks where it belongs, reads the next."""
    generator = torch.Generator().manual_seed(number)
    while True:
        with counting:
            if counted[0] >= STEPS:
                return
            counted[0] += 1
        tenant = int(torch.randint(TENANTS, (1,), generator=generator))
        ticket = torch.randint(VOCAB, (LENGTH,), generator=generator)
        asked = time.perf_counter()
        chances = service.route(tenant, ticket)
        answers.append((time.perf_counter() - asked, time.perf_counter(), float(chances.max())))
        time.sleep(THINKING)


with torch.no_grad():
    service = Service()
for some in range(3):
    service.route(some % TENANTS, torch.arange(LENGTH) % VOCAB)
counting, counted, answers = threading.Lock(), [0], []
began = time.perf_counter()
desks = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
for one in desks:
    one.start()
for one in desks:
    one.join()
spent = max(ended for _, ended, _ in answers) - began
waits = sorted(wait for wait, _, _ in answers)
sure = sum(chance for _, _, chance in answers) / len(answers)
median = 1e3 * waits[len(waits) // 2]
print(f"{len(answers)} tickets, mean chance of the first queue {sure:.3f}, median latency {median:.1f} ms")
print(f"{1e3 * spent / len(answers):.4f} ms per ticket")
