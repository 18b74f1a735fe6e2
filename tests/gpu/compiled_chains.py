"""What a compiler makes of chains through softmaxes, norms and reductions; and what breaks cost layers.

    python tests/gpu/compiled_chains.py [SECONDS]

For each small function it prints the kernels of a forward and a backward pass, eager and compiled, in µs;
then the step of compiled layers that a read of the device breaks, and of the same layers whole, launched one
by one and replayed as CUDA graphs. No more is begun when the seconds (default 97) are nearly over.
"""

import re
import sys
import time

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

BEGAN = time.perf_counter()
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
backend = "inductor" if CUDA else "aot_eager"
S = 1 if CUDA else 64  # smaller, without a device
torch.manual_seed(0)


def randn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)


def labels(rows, words):
    return torch.randint(words, (rows,), device=device)


# Each: inputs, function. Of a function's result the gradient is taken by all inputs that have one.
def entropy(logits):
    likely = F.log_softmax(logits.float(), -1)
    return -(likely.exp() * likely).sum(-1).mean()


def smoothing(logits, wanted):
    likely = F.log_softmax(logits.float(), -1)
    right = -likely.gather(-1, wanted[:, None]).squeeze(-1)
    return (0.9 * right - 0.1 * likely.mean(-1)).mean()


def plain(logits, wanted):
    return F.cross_entropy(logits.float(), wanted)


def distil(logits, other):
    near = F.log_softmax(logits.float() / 2, -1)
    return F.kl_div(near, F.softmax(other.float() / 2, -1), reduction="batchmean") * 4


def attention(scores, hidden):
    scores = (scores / 8).masked_fill(hidden, float("-inf"))
    return F.softmax(scores, -1)


def attention_low(scores, hidden):
    return F.softmax((scores * 0.125 + hidden).float(), -1).to(scores.dtype)


def focal(logits, wanted):
    chance = F.softmax(logits, -1)
    one = F.one_hot(wanted, logits.shape[-1]).float()
    return (-one * (1 - chance) ** 2 * (chance + 1e-8).log()).sum(-1).mean()


def contrast(left, right):
    likely = left @ right.t() / 0.07
    wanted = torch.arange(len(left), device=left.device)
    return F.cross_entropy(likely, wanted) + F.cross_entropy(likely.t(), wanted)


def rms(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def layer_norm_by_hand(x, weight, bias):
    apart = x - x.mean(-1, keepdim=True)
    return apart / (apart.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def add_norm(x, y, weight, bias):
    return F.layer_norm(F.gelu(y) + x, x.shape[-1:], weight, bias)


def unit(x):
    x = torch.tanh(x)
    return x / x.norm(dim=-1, keepdim=True)


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def huber(x, y):
    return F.smooth_l1_loss(torch.sigmoid(x) * 2 - 1, y.float() / 255)


def dice(low, wanted):
    logits = F.interpolate(low.float(), size=wanted.shape[-2:], mode="bilinear", align_corners=False)
    chances = F.softmax(logits, 1)
    one_hot = F.one_hot(wanted, low.shape[1]).permute(0, 3, 1, 2).float()
    both, count = (chances * one_hot).sum((2, 3)), one_hot.sum((2, 3))
    dice = 1 - (2 * both + 1) / (chances.sum((2, 3)) + count + 1)
    return F.cross_entropy(logits, wanted) + dice.mean()


def table(logits, wanted):
    likely = F.log_softmax(logits.float(), -1)
    with torch.no_grad():
        hoped = torch.full_like(likely, 0.1 / (logits.shape[-1] - 1)).scatter_(-1, wanted[:, None], 0.9)
    return -(hoped * likely).sum(-1).mean()


def dense_gat(left, right, linked):
    scores = F.leaky_relu(left[:, :, None] + right[:, None, :], 0.2)
    return F.dropout(F.softmax(scores.masked_fill(~linked, -9e15), -1), 0.5)


def margin(near, wanted):
    angles = torch.acos(near.float().clamp(-1 + 1e-7, 1 - 1e-7))
    one_hot = F.one_hot(wanted, near.shape[-1])
    return F.cross_entropy(64 * torch.cos(angles + 0.5 * one_hot), wanted)


def build():
    low = torch.bfloat16
    rows, words = 8192 // S, 32000 // S
    yield "entropy 8192x32000 bf16", entropy, [randn(rows, words, dtype=low)]
    yield "entropy 65536x1000 f32", entropy, [randn(65536 // S, 1000 // S)]
    yield "smoothing 8192x32000 bf16", smoothing, [randn(rows, words, dtype=low), labels(rows, words)]
    yield "distil 8192x8192 f32", distil, [randn(rows, 8192 // S), randn(rows, 8192 // S, grad=False)]
    hidden = torch.ones(1024 // S, 1024 // S, dtype=torch.bool, device=device).triu(1)
    yield "attention 96x1024x1024 f32", attention, [randn(96, 1024 // S, 1024 // S), hidden]
    mask = torch.zeros(1024 // S, 1024 // S, dtype=low, device=device).masked_fill(hidden, -1e4)
    yield "attention 192x1024x1024 bf16", attention_low, [randn(192, 1024 // S, 1024 // S, dtype=low), mask]
    yield "focal 131072x512 f32", focal, [randn(131072 // S, 512 // S), labels(131072 // S, 512 // S)]
    yield "contrast 8192x8192 f32", contrast, [randn(rows, 128, dtype=low), randn(rows, 128, dtype=low)]
    yield "rms 16384x4096 bf16", rms, [randn(16384 // S, 4096 // S, dtype=low), randn(4096 // S, dtype=low)]
    size = 2048 // S
    yield (
        "norm by hand 32768x2048 f32",
        layer_norm_by_hand,
        [randn(32768 // S, size), randn(size), randn(size)],
    )
    both = [randn(32768 // S, size, dtype=low) for _ in range(2)]
    yield "gelu add norm 32768x2048 bf16", add_norm, [*both, *(randn(size, dtype=low) for _ in range(2))]
    yield "unit 131072x512 f32", unit, [randn(131072 // S, 512 // S)]
    yield "tanh gelu 16384x4096 bf16", tanh_gelu, [randn(16384 // S, 4096 // S, dtype=low)]
    picture = torch.randint(256, (64, 3 * 512 * 512 // S), dtype=torch.uint8, device=device)
    yield "huber 64x786432 f32", huber, [randn(64, 3 * 512 * 512 // S), picture]
    yield "cross entropy 8192x32000 bf16", plain, [randn(rows, words, dtype=low), labels(rows, words)]
    spots = torch.randint(150, (8, 512 // S, 512 // S), device=device)
    yield "dice 8x150x512x512", dice, [randn(8, 150, 128 // S, 128 // S, dtype=low), spots]
    yield "table 8192x32000 bf16", table, [randn(rows, words, dtype=low), labels(rows, words)]
    linked = torch.rand(2708 // S, 2708 // S, device=device) < 0.01
    yield "dense gat 8x2708x2708", dense_gat, [randn(8, 2708 // S), randn(8, 2708 // S), linked]
    yield (
        "margin 1024x85000 bf16",
        margin,
        [randn(1024 // S, 85000 // S, dtype=low), labels(1024 // S, 85000 // S)],
    )


def once(function, inputs, seed):
    wanted = [one for one in inputs if one.requires_grad]
    return torch.autograd.grad(function(*inputs), wanted, seed)


def recorded(function, inputs, seed):
    """The kernels of one pass forward and backward, in order: the op that launched each, its time."""
    for _ in range(3):
        once(function, inputs, seed)
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * CUDA) as found:
        for _ in range(3):
            once(function, inputs, seed)
        if CUDA:
            torch.cuda.synchronize()
    events = found.profiler.kineto_results.events()
    ops = {e.correlation_id(): e.name()[6:] for e in events if e.name().startswith("aten::")}
    device_work = [e for e in events if "CUDA" in str(e.device_type())]
    kernels = [e for e in device_work if not re.match("Profiler|aten::|Torch-Comp|##|Compiled", e.name())]
    kernels.sort(key=lambda e: e.start_ns())
    rows, each = [], len(kernels) // 3
    for place in range(each):
        times = sorted(one.duration_ns() / 1e3 for one in kernels[place::each])
        name = kernels[place].name()
        if not name.startswith("triton"):
            name = ops.get(kernels[place].linked_correlation_id(), name)
        rows.append((name[:44], times[1]))
    return rows


def shown(rows):
    listed = " + ".join(f"{name} {us:.0f}" for name, us in rows if us >= 3)
    return f"{sum(us for _, us in rows):8.0f} = {listed}"


def compared(function, inputs):
    with torch.no_grad():
        seed = torch.randn_like(function(*inputs))
    print("  eager   ", shown(recorded(function, inputs, seed)))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    print("  compiled", shown(recorded(compiled, inputs, seed)), flush=True)


def chains(until):
    for name, function, inputs in build():
        if time.perf_counter() - BEGAN > until:
            print("no time for", name)
            continue
        print(name)
        compared(function, inputs)
        del inputs
        if CUDA:
            torch.cuda.empty_cache()


def scatter_sum(values, index, size=None):
    if size is None:
        size = int(index.max()) + 1
    return values.new_zeros(size, values.shape[1]).index_add_(0, index, values)


class Layer(nn.Module):
    def __init__(self, wide, known):
        super().__init__()
        self.known = known

        def mlp(enter):
            ends = nn.Linear(enter, wide), nn.Linear(wide, wide), nn.Linear(wide, wide)
            return nn.Sequential(ends[0], nn.ReLU(), ends[1], nn.ReLU(), ends[2], nn.LayerNorm(wide))

        self.edge, self.node = mlp(3 * wide), mlp(2 * wide)

    def forward(self, nodes, edges, senders, receivers):
        seen = self.edge(torch.cat([nodes[senders], nodes[receivers], edges], 1))
        near = scatter_sum(seen, receivers, len(nodes) if self.known else None)
        return nodes + self.node(torch.cat([nodes, near], 1)), edges + seen


def bounded(x, known):
    limit = torch.finfo(x.dtype).max - 1000
    if known:
        return torch.clamp(x, -limit, limit)
    if torch.isinf(x).any() or torch.isnan(x).any():
        x = torch.clamp(x, -limit, limit)
    return x


class Encoder(nn.Module):
    def __init__(self, wide, known):
        super().__init__()
        self.known = known
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x, edges, senders, receivers):
        q, k, v = (one.unflatten(2, (-1, 64)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = bounded(self.norm1(x + y), self.known)
        return bounded(self.norm2(x + self.down(F.gelu(self.up(x)))), self.known), edges


def broken(kind, known, mode):
    torch._dynamo.reset()
    wide, count, number, low = (128, 7680, 15, True) if CUDA else (8, 60, 2, False)
    torch.set_float32_matmul_precision("high")
    with device:
        if kind == "mesh":
            layers = nn.ModuleList(Layer(wide, known) for _ in range(number))
            nodes, edges = torch.randn(count, wide), torch.randn(6 * count, wide)
        else:
            wide, number = (768, 12) if CUDA else (64, 2)
            layers = nn.ModuleList(Encoder(wide, known) for _ in range(number))
            nodes, edges = torch.randn(16, 512 if CUDA else 8, wide), None
        senders, receivers = (torch.randint(count, (6 * count,)) for _ in range(2))
    receivers[0] = count - 1
    for layer in layers:
        layer.compile(backend=backend, dynamic=False, **({"mode": mode} if CUDA and mode else {}))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-4, fused=CUDA)

    def step():
        if mode:
            torch.compiler.cudagraph_mark_step_begin()
        n, e = nodes, edges
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            for layer in layers:
                n, e = layer(n, e, senders, receivers)
        loss = n.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(8):
        step()
    times = []
    for _ in range(30):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[15]


def breaks(limit):
    for kind, known, mode in (
        ("mesh", False, ""), ("mesh", True, ""), ("mesh", False, ""), ("mesh", True, ""),
        ("tagger", False, ""), ("tagger", True, ""), ("tagger", False, ""), ("tagger", True, ""),
        ("mesh", False, "reduce-overhead"), ("mesh", True, "reduce-overhead"),
        ("tagger", False, "reduce-overhead"), ("tagger", True, "reduce-overhead"),
    ):  # fmt: skip
        if time.perf_counter() - BEGAN > limit - 10:
            print("no time for", kind, known, mode)
            continue
        start = time.perf_counter()
        ms = broken(kind, known, mode)
        print(
            f"{kind} {'whole' if known else 'broken'}, mode {mode or 'default'}: {ms:.2f} ms a step; "
            f"took {time.perf_counter() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    if CUDA:
        print(torch.__version__, torch.cuda.get_device_name())
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 97.0
    chains(seconds / 2)
    breaks(seconds)
    print(f"{time.perf_counter() - BEGAN:.0f} s in all")
