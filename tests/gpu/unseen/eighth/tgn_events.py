"""A temporal graph network on interactions of users and pages: who visits what next?"""

import os
import time

import torch
from torch import nn
from torch_geometric.nn import TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastNeighborLoader, TGNMemory

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
USERS, PAGES, EVENTS, BATCH, FEATURES, WIDTH, NEIGHBOURS = (
    (20, 10, 80, 16, 6, 8, 3) if TINY else (8000, 1000, 24_000, 400, 172, 100, 10)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def events():
    """Users come back to the pages that they like, in the order of time."""
    source = (torch.rand(EVENTS).pow(2) * USERS).long()
    page = (source * 7 + (torch.rand(EVENTS).pow(3) * 40).long()) % PAGES
    moment = torch.arange(EVENTS) * 3 + torch.randint(3, (EVENTS,))
    return [x.to(device) for x in (source, page + USERS, moment, torch.randn(EVENTS, FEATURES))]


class Newest(nn.Module):
    """Of the messages of a node the newest; zeros where there is none."""

    def forward(self, msg, index, t, dim_size):
        newest = t.new_full((dim_size,), -1).scatter_reduce(0, index, t, "amax")
        taken = (t == newest[index]).nonzero().squeeze(1)
        return msg.new_zeros(dim_size, msg.size(1)).index_put((index[taken],), msg[taken])


class LastMessages(TGNMemory):
    """A memory that keeps the last message of each node in tables, as no other is used."""

    def _reset_message_store(self):
        self.msg_s_store, self.msg_d_store = self.table(), self.table()

    def table(self):
        n = self.num_nodes
        numbers = {name: torch.zeros(n, dtype=torch.long, device=self.device) for name in ("other", "t")}
        message = torch.zeros(n, self.raw_msg_dim, device=self.device)
        return {**numbers, "message": message, "any": torch.zeros(n, dtype=torch.bool, device=self.device)}

    def _update_msg_store(self, src, dst, t, raw_msg, store):
        # Events are in the order of time: the last of a node is the largest of its places.
        places = torch.full((self.num_nodes,), -1, device=src.device)
        order = torch.arange(len(src), device=src.device)
        last = places.scatter_reduce(0, src, order, "amax")[src]
        store["other"][src], store["t"][src] = dst[last], t[last]
        store["message"][src], store["any"][src] = raw_msg[last], True

    def _compute_msg(self, n_id, store, module):
        src = n_id[store["any"][n_id]]
        dst, t, raw_msg = store["other"][src], store["t"][src], store["message"][src]
        encoded = self.time_enc((t - self.last_update[src]).to(raw_msg.dtype))
        return module(self.memory[src], self.memory[dst], raw_msg, encoded), t, src, dst


class Embedding(nn.Module):
    """Attention over the last neighbours, their events and how long ago these were."""

    def __init__(self, time_enc):
        super().__init__()
        self.time_enc = time_enc
        self.conv = TransformerConv(WIDTH, WIDTH // 2, heads=2, dropout=0.0, edge_dim=FEATURES + WIDTH)

    def forward(self, x, last_update, edges, t, message):
        ago = last_update[edges[0]] - t
        return self.conv(x, edges, torch.cat([self.time_enc(ago.to(x.dtype)), message], 1))


class Link(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.dst, self.final = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, a, b):
        return self.final((self.src(a) + self.dst(b)).relu()).squeeze(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        kind = LastMessages if "tables" in FIX else TGNMemory
        message = IdentityMessage(FEATURES, WIDTH, WIDTH)
        self.memory = kind(USERS + PAGES, FEATURES, WIDTH, WIDTH, message, Newest())
        self.embed, self.link = Embedding(self.memory.time_enc), Link()


def scores(model, loader, data, places, negative):
    """Of the events in a batch, and of events that did not happen."""
    source, page, moment, message = data
    src, dst = source[places], page[places]
    n_id, edges, e_id = loader(torch.cat([src, dst, negative]).unique())
    where[n_id] = torch.arange(len(n_id), device=device)
    z, last_update = model.memory(n_id)
    z = model.embed(z, last_update, edges, moment[e_id], message[e_id])
    found = model.link(z[where[src]], z[where[dst]]), model.link(z[where[src]], z[where[negative]])
    return found, (src, dst, moment[places], message[places])


where = torch.empty(USERS + PAGES, dtype=torch.long, device=device)
data, model = events(), Model().to(device)
model.memory.reset_state()
loader = LastNeighborLoader(USERS + PAGES, NEIGHBOURS, device=device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
criterion = nn.BCEWithLogitsLoss()
train = EVENTS * 5 // 6 // BATCH * BATCH
step, times, epoch, last = 0, [], 0, torch.zeros(())
while step < STEPS:
    model.train()
    model.memory.reset_state()
    loader.reset_state()
    total = torch.zeros((), device=device) if "loss-rarely" in FIX else 0.0
    for begin in range(0, train, BATCH):
        if step == STEPS:
            break
        began = time.perf_counter()
        optimizer.zero_grad()
        places = torch.arange(begin, begin + BATCH, device=device)
        negative = torch.randint(USERS, USERS + PAGES, (BATCH,), device=device)
        (yes, no), happened = scores(model, loader, data, places, negative)
        loss = criterion(yes, torch.ones_like(yes)) + criterion(no, torch.zeros_like(no))
        model.memory.update_state(*happened)
        loader.insert(*happened[:2])
        loss.backward()
        optimizer.step()
        model.memory.detach()
        last = loss.detach()
        total += last if "loss-rarely" in FIX else loss.item()
        times.append(time.perf_counter() - began)
        step += 1
    print(f"epoch {epoch}: {float(total) * BATCH / train:.4f}")
    epoch += 1
right = []
with torch.no_grad():
    model.eval()
    for begin in range(train, EVENTS - BATCH + 1, BATCH):
        places = torch.arange(begin, begin + BATCH, device=device)
        negative = torch.randint(USERS, USERS + PAGES, (BATCH,), device=device)
        (yes, no), happened = scores(model, loader, data, places, negative)
        model.memory.update_state(*happened)
        loader.insert(*happened[:2])
        right.append((yes > no).float().mean())
kept = times[min(STEPS // 2, 8) :]
print(
    f"loss {last.item():.5f}, {100 * torch.stack(right).mean().item():.1f} % ranked right; "
    f"{1e3 * sum(kept) / len(kept):.3f} ms per batch"
)
