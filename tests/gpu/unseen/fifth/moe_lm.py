"""Fine-tuning a mixture of experts: 64 small experts in each layer, eight of them for each token."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 12))
BATCH, LENGTH, HIDDEN, INTER, HEADS, LAYERS, EXPERTS, TOP, VOCAB = (
    (2, 8, 16, 8, 2, 2, 6, 2, 50) if TINY else (4, 512, 1024, 512, 16, 4, 64, 8, 32000)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INTER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTER, bias=False)
        self.down_proj = nn.Linear(INTER, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseMoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        if "experts-at-once" in FIX:
            for name in ("gate_proj", "up_proj", "down_proj"):
                weights = [getattr(one, name).weight.detach().T for one in self.experts]
                setattr(self, name, nn.Parameter(torch.stack(weights)))
            del self.experts

    def forward(self, hidden_states):
        shape = hidden_states.shape
        hidden_states = hidden_states.view(-1, HIDDEN)
        router_logits = self.gate(hidden_states)
        routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        routing_weights, selected_experts = torch.topk(routing_weights, TOP, dim=-1)
        routing_weights = routing_weights.to(hidden_states.dtype)
        if "experts-at-once" in FIX:
            return self.grouped(hidden_states, routing_weights, selected_experts).view(shape), router_logits
        final_hidden_states = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected_experts, num_classes=EXPERTS).permute(2, 1, 0)
        for expert_idx in range(EXPERTS):
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[None, top_x].reshape(-1, HIDDEN)
            current_hidden_states = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final_hidden_states.index_add_(0, top_x, current_hidden_states.to(hidden_states.dtype))
        return final_hidden_states.view(shape), router_logits

    def grouped(self, x, weights, selected):
        """Tokens sorted by expert in rows of equal length, so that all experts are three products."""
        order = selected.flatten().argsort(stable=True)
        expert, token = selected.flatten()[order], order // TOP
        counts = torch.bincount(expert, minlength=EXPERTS)
        place = torch.arange(len(order), device=x.device) - (counts.cumsum(0) - counts)[expert]
        rows = expert * (longest := int(counts.max())) + place
        padded = x.new_zeros(EXPERTS * longest, HIDDEN).index_copy(0, rows, x.index_select(0, token))
        padded = padded.view(EXPERTS, longest, HIDDEN)
        hidden = F.silu(torch.bmm(padded, self.gate_proj)) * torch.bmm(padded, self.up_proj)
        out = torch.bmm(hidden, self.down_proj).view(-1, HIDDEN).index_select(0, rows)
        out = out * weights.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(x).index_add(0, token, out)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o_proj = (
            nn.Linear(HIDDEN, 3 * HIDDEN, bias=False),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)

        def rotate(t):
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat([-b, a], -1) * sin

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = RMSNorm(), Attention(), RMSNorm(), SparseMoe()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y, router_logits = self.mlp(self.norm2(x))
        return x + y, router_logits


class MoeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, HIDDEN), RMSNorm()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        half = HIDDEN // HEADS // 2
        angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, ids):
        x, routers = self.embed(ids), []
        for layer in self.layers:
            x, router_logits = layer(x, self.cos, self.sin)
            routers.append(router_logits)
        return self.lm_head(self.norm(x)), torch.cat(routers)


def load_balancing_loss(router_logits):
    probabilities = F.softmax(router_logits.float(), -1)
    selected = probabilities.topk(TOP, -1).indices
    share = F.one_hot(selected, EXPERTS).float().mean(0)
    return EXPERTS * (share * probabilities.mean(0)).sum()


with torch.device(device):
    model = MoeLM()
    for p in model.parameters():
        if p.dim() > 1:
            p.data.mul_(0.5)
model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=device.type == "cuda")
data = torch.randint(0, VOCAB, (64, LENGTH + 1))
losses, times, START = [], [], min(STEPS // 2, 4)
for step in range(STEPS):
    began = time.time()
    batch = data[torch.randint(0, len(data), (BATCH,))].to(device)
    logits, router_logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.float().view(-1, VOCAB), batch[:, 1:].reshape(-1))
    loss = loss + 0.01 * load_balancing_loss(router_logits)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if "loss-rarely" not in FIX or step % 10 == 9 or step in (START - 1, STEPS - 1):
        losses.append(loss.item())
    times.append(time.time() - began)
    if step % 10 == 0 and losses:
        print({"loss": round(losses[-1], 4), "step": step})
kept = times[START:]
print(f"loss {losses[-1]:.4f}; {len(kept) / sum(kept):.4f} it/s")
