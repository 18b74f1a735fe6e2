"""The rest of that second set, which bring their own layers, and what all of it share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], Any]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

HOST_BOUND = ("overhead-bound", "launch-gap", "many-tiny-kernels", "python-overhead", "unfused-elementwise")
# Each fix of each program, and the rules whose advice it is; none, where no rule gives it.
FIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "speech": {
        "mel-on-device": ("host-op-stall", "unexplained-idle"),
        "cudnn": HOST_BOUND,
        "fused": ("optimizer-not-fused",),
    },
    "diffusion": {
        "noise-on-device": ("host-op-stall", "pageable-copy"),
        "no-item": ("sync-in-step",),
        "tf32": ("no-tensor-cores",),
    },
    "decode": {"allocated": (), "no-item": ("sync-in-step",), "graph": HOST_BOUND},
    "images": {
        "workers": ("data-loading-stall",),
        "pinned": ("pageable-copy",),
        "fused": ("optimizer-not-fused",),
    },
    "broken": {"no-check": ("graph-break", "sync-in-step"), "fused": ("optimizer-not-fused",)},
    "tables": {"sparse": (), "pinned": ("pageable-copy",)},
    "doubles": {"float32": (), "mask-on-device": ("host-op-stall", "pageable-copy")},
    "windows": {
        "sdpa": ("unfused-attention",),
        "compile": HOST_BOUND,
        "fused": ("optimizer-not-fused",),
    },
}


def size(device: int, host: int) -> int:
    """A size: as people have it, and for trying on a CPU."""
    return device if DEVICE == "cuda" else host


def precision(fixes: set[str]) -> None:
    torch.set_float32_matmul_precision("high" if "tf32" in fixes else "highest")
    torch.backends.cudnn.allow_tf32 = "tf32" in fixes


def adamw(model: nn.Module, fixes: set[str]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4, fused="fused" in fixes)


@torch.no_grad()
def average(kept: nn.Module, model: nn.Module, foreach: bool) -> None:
    """Move the average of the weights, as most implementations do: one parameter after the other."""
    if foreach:
        torch._foreach_lerp_(list(kept.parameters()), list(model.parameters()), 0.001)
        return
    for mean, p in zip(kept.parameters(), model.parameters(), strict=True):
        mean.data.mul_(0.999).add_(p.data, alpha=0.001)


def speech(fixes: set[str]) -> Step:
    """Features made on the host in the step, and a recurrent cell called once for each frame."""
    from torchaudio.transforms import MelSpectrogram

    width = size(512, 16)
    mel = MelSpectrogram(16000, n_fft=400, hop_length=320, n_mels=64)
    if "mel-on-device" in fixes:
        mel = mel.to(DEVICE)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 64)
            self.cell = (
                nn.LSTM(width, width, batch_first=True) if "cudnn" in fixes else nn.LSTMCell(width, width)
            )

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            if isinstance(self.cell, nn.LSTM):
                return self.last(self.cell(x)[0])
            h, c, every = x.new_zeros(len(x), width), x.new_zeros(len(x), width), []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                every.append(h)
            return self.last(torch.stack(every, 1))

    model = Net().to(DEVICE)
    optimizer = adamw(model, fixes)
    sound = torch.randn(size(32, 2), 16000)

    def step() -> None:
        waves = sound.to(DEVICE) if "mel-on-device" in fixes else sound
        x = mel(waves).clamp(min=1e-5).log().transpose(1, 2).to(DEVICE)
        optimizer.zero_grad()
        F.mse_loss(model(x)[:, :-1], x[:, 1:]).backward()
        optimizer.step()

    return step


def diffusion(fixes: set[str]) -> Step:
    """One step of a sampler: its schedule is read from the device, its noise made on the host."""
    precision(fixes)
    width = size(96, 8)

    class Block(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.norm, self.first = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
            self.time, self.second = nn.Linear(width, b), nn.Conv2d(b, b, 3, padding=1)
            self.skip = nn.Conv2d(a, b, 1)

        def forward(self, x: Any, t: Any) -> Any:
            y = self.first(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]
            return self.skip(x) + self.second(F.silu(y))

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w = width
            self.first, self.last = nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 3, 3, padding=1)
            self.down = nn.ModuleList([Block(w, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
            self.up = nn.ModuleList([Block(8 * w, 2 * w), Block(4 * w, w), Block(2 * w, w)])

        def forward(self, x: Any, t: Any) -> Any:
            waves = torch.exp(torch.linspace(0, -9, width // 2, device=x.device)) * t[:, None]
            t = torch.cat([waves.sin(), waves.cos()], 1)
            x, kept = self.first(x), []
            for block in self.down:
                x = block(x, t)
                kept.append(x)
                x = F.avg_pool2d(x, 2)
            for block in self.up:
                x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1), t)
            return self.last(x)

    model = Unet().to(DEVICE).eval()
    betas = torch.linspace(1e-4, 0.02, 1000)
    alphas = (1 - betas).cumprod(0).to(DEVICE)
    pixels = size(64, 16)
    x = torch.randn(size(16, 1), 3, pixels, pixels, device=DEVICE)
    now = [999]

    @torch.no_grad()
    def step() -> None:
        t = torch.full((len(x),), now[0], device=DEVICE)
        alpha = alphas[now[0]] if "no-item" in fixes else alphas[now[0]].item()
        noise = model(x, t.float())
        fresh = torch.randn(x.shape, device=DEVICE if "noise-on-device" in fixes else "cpu").to(DEVICE)
        x.copy_((x - (1 - alpha) ** 0.5 * noise).clamp(-1, 1) * alpha**0.5 + 0.01 * fresh)
        now[0] = now[0] - 1 or 999

    return step


def decode(fixes: set[str]) -> Step:
    """Sixteen tokens of greedy decoding, a cache that grows by cat, each token looked at for the end."""
    width, heads, layers, words = size(768, 32), size(12, 2), size(8, 2), 8000
    start, tokens = size(256, 8), size(16, 3)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.out, self.after = nn.Linear(width, width), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any, cache: Any, position: Any) -> tuple[Any, Any]:
            q, k, v = self.qkv(self.norm(x)).view(len(x), 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = cache
            seen = None
            if "allocated" in fixes or "graph" in fixes:
                keys.index_copy_(2, position, k)
                values.index_copy_(2, position, v)
                seen = (torch.arange(keys.shape[2], device=DEVICE) <= position)[None]
            else:
                keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + self.out(y.transpose(1, 2).reshape(len(x), 1, width))
            return x + self.mlp(self.after(x)), (keys, values)

    batch, allocated = size(8, 1), "allocated" in fixes or "graph" in fixes
    embed, head = nn.Embedding(words, width).to(DEVICE), nn.Linear(width, words).to(DEVICE)
    blocks = nn.ModuleList(Block() for _ in range(layers)).to(DEVICE)
    length = start + tokens if allocated else start
    prompt = [torch.randn(2, batch, heads, length, width // heads, device=DEVICE) for _ in range(layers)]
    first = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
    positions = [torch.tensor([start + i], device=DEVICE) for i in range(tokens)]
    where = positions[0].clone()

    def token(word: Any, caches: list[Any], position: Any) -> tuple[Any, list[Any]]:
        x, grown = embed(word), []
        for block, cache in zip(blocks, caches, strict=True):
            x, cache = block(x, cache, position)
            grown.append(cache)
        return head(x).argmax(-1), grown

    caches = [(one[0], one[1]) for one in prompt]
    replay: Step | None = None
    if "graph" in fixes and DEVICE == "cuda":
        from wrong_programs import captured

        with torch.no_grad():
            replay = captured(lambda: first.copy_(token(first, caches, where)[0]))

    @torch.no_grad()
    def step() -> None:
        word, grown = first, caches
        for position in positions:
            if replay is not None:
                where.copy_(position)
                replay()
                word = first
            else:
                word, grown = token(word, grown, position)
            if "no-item" not in fixes and (word == words).all().item():
                break

    return step


def images(fixes: set[str]) -> Step:
    """A loader that decodes and augments in the main process, as it does unless told otherwise."""
    import numpy as np
    import torchvision
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    change = transforms.Compose(
        [
            transforms.RandomResizedCrop(size(112, 32)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
        ]
    )
    pictures = np.random.default_rng(0).integers(0, 255, (64, 160, 160, 3), dtype=np.uint8)

    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, i: int) -> Any:
            return change(Image.fromarray(pictures[i % 64])), i % 10

    model = torchvision.models.resnet18(num_classes=10).to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused="fused" in fixes)
    pinned = "pinned" in fixes
    workers = size(12, 2) if "workers" in fixes else 0
    loader = DataLoader(
        Pictures(), size(32, 4), shuffle=True, num_workers=workers, pin_memory=pinned and DEVICE == "cuda"
    )
    batches = iter(loader)

    def step() -> None:
        x, y = next(batches)
        x, y = x.to(DEVICE, non_blocking=pinned), y.to(DEVICE, non_blocking=pinned)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def broken(fixes: set[str]) -> Step:
    """A compiled model that looks for values that are not finite after every block."""
    width, length = size(512, 32), size(128, 8)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.down(F.gelu(self.up(self.norm(x)))) * 0.5
            if "no-check" not in fixes and not torch.isfinite(y).all():
                print("not finite")
            return x + y

    model = nn.Sequential(*[Block() for _ in range(size(8, 2))]).to(DEVICE, torch.bfloat16)
    optimizer = adamw(model, fixes)
    compiled = torch.compile(model)
    x = torch.randn(size(32, 2), length, width, device=DEVICE, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()

    return step


def tables(fixes: set[str]) -> Step:
    """A recommender: gradients of whole tables, of which a batch touches a few thousand rows."""
    fields, rows, width = 8, size(200_000, 100), size(64, 8)
    sparse, pinned = "sparse" in fixes, "pinned" in fixes
    embeddings = nn.ModuleList(nn.Embedding(rows, width, sparse=sparse) for _ in range(fields)).to(DEVICE)
    dense = nn.Sequential(nn.Linear(fields * width, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
    made = torch.optim.SparseAdam if sparse else torch.optim.Adam
    optimizers = [made(list(embeddings.parameters()), 1e-3), torch.optim.Adam(dense.parameters(), 1e-3)]
    ids, clicks = torch.randint(0, rows, (size(8192, 16), fields)), torch.rand(size(8192, 16), 1).round()
    if pinned and DEVICE == "cuda":
        ids, clicks = ids.pin_memory(), clicks.pin_memory()

    def step() -> None:
        x, y = ids.to(DEVICE, non_blocking=pinned), clicks.to(DEVICE, non_blocking=pinned)
        picked = [table(x[:, i]) for i, table in enumerate(embeddings)]
        loss = F.binary_cross_entropy_with_logits(dense(torch.cat(picked, 1)), y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def doubles(fixes: set[str]) -> Step:
    """A regression on NumPy's numbers, which are float64, with noise of the host's on its inputs."""
    import numpy as np

    numbers = np.random.default_rng(0).standard_normal((size(4096, 16), size(1024, 16)))
    x = torch.from_numpy(numbers).to(DEVICE)
    if "float32" in fixes:
        x = x.float()
    width = x.shape[1]
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers).to(DEVICE, x.dtype)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> None:
        keep = torch.rand(x.shape, device=DEVICE if "mask-on-device" in fixes else "cpu") > 0.1
        optimizer.zero_grad()
        F.mse_loss(model(x * keep.to(DEVICE)), x).backward()
        optimizer.step()

    return step


def windows(fixes: set[str]) -> Step:
    """Attention in windows of an image, written out with a bias, between permutations."""
    width, heads, side = size(256, 16), size(8, 2), 8

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.out, self.after = nn.Linear(width, width), nn.LayerNorm(width)
            self.bias = nn.Parameter(torch.zeros(heads, side * side, side * side))
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            b, h, w, c = x.shape
            y = self.norm(x).view(b, h // side, side, w // side, side, c).permute(0, 1, 3, 2, 4, 5)
            y = y.reshape(-1, side * side, c)
            q, k, v = self.qkv(y).view(len(y), side * side, 3, heads, -1).permute(2, 0, 3, 1, 4)
            if "sdpa" in fixes:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            else:
                y = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + self.bias).softmax(-1) @ v
            y = self.out(y.transpose(1, 2).reshape(-1, side * side, c))
            y = y.view(b, h // side, w // side, side, side, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            x = x + y
            return x + self.mlp(self.after(x))

    model: Any = nn.Sequential(*[Block() for _ in range(size(6, 2))]).to(DEVICE, torch.bfloat16)
    optimizer = adamw(model, fixes)
    if "compile" in fixes:
        model = torch.compile(model)
    pixels = size(56, 16)
    x = torch.randn(size(16, 1), pixels, pixels, width, device=DEVICE, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
