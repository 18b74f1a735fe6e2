"""The programs of ``pairs.py``: what each does wrong unless it is among its ``fixes``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

Step = Callable[[], Any]


# Each fix of each program, and the rules whose advice it is.
FIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "resnet": {
        "channels_last": ("layout-conversion",),
        "pinned": ("pageable-copy",),
        "fused": ("optimizer-not-fused",),
        "no-item": ("sync-in-step",),
    },
    "bert": {
        "tf32": ("no-tensor-cores",),
        "fused": ("optimizer-not-fused",),
        "no-item": ("sync-in-step",),
    },
    "gpt": {
        "sdpa": ("unfused-attention",),
        "fused": ("optimizer-not-fused",),
        "compile": ("unfused-elementwise", "overhead-bound", "launch-gap"),
    },
    "vit": {"tf32": ("no-tensor-cores",), "graph": ("overhead-bound", "launch-gap")},
    "densenet": {"graph": ("overhead-bound", "launch-gap"), "channels_last": ("layout-conversion",)},
    "unet": {"tf32": ("no-tensor-cores",), "channels_last": ("layout-conversion",)},
    "experts": {"unbind": ("index-backward",)},
    "average": {"foreach": ("many-tiny-kernels",), "fused": ("optimizer-not-fused",)},
    "loader": {"workers": ("data-loading-stall",)},
    "person_search": {"groups": ("optimizer-not-fused",), "fused,groups": ("optimizer-not-fused",)},
    "shown_scores": {"no-weights": ("unfused-attention",)},
    "two_views": {"one-pass": ("split-batches",)},
    "real_and_fake": {"one-pass": ("split-batches",)},
    "tuned": {},
}


def resnet(fixes: set[str]) -> Step:
    import torch
    import torchvision
    from torch import nn

    channels = torch.channels_last if "channels_last" in fixes else torch.contiguous_format
    model = torchvision.models.resnet50().cuda().to(memory_format=channels)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused="fused" in fixes)
    images, labels = torch.randn(64, 3, 224, 224), torch.randint(0, 1000, (64,))
    pinned = "pinned" in fixes
    if pinned:
        images, labels = images.pin_memory(), labels.pin_memory()
    total = torch.zeros((), device="cuda")

    def step() -> None:
        x = images.to("cuda", non_blocking=pinned).to(memory_format=channels)
        y = labels.to("cuda", non_blocking=pinned)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach()) if "no-item" in fixes else loss.item()

    return step


def bert(fixes: set[str]) -> Step:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_float32_matmul_precision("high" if "tf32" in fixes else "highest")
    config = BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
    model = BertForSequenceClassification(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused="fused" in fixes)
    ids, labels = torch.randint(0, 30000, (32, 128), device="cuda"), torch.randint(0, 2, (32,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        if "no-item" not in fixes:
            loss.item()

    return step


def gpt(fixes: set[str]) -> Step:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int = 768, heads: int = 12) -> None:
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

        def forward(self, x: Any, mask: Any) -> Any:
            batch, length, width = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            if "sdpa" in fixes:
                y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
                y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.blocks = nn.Embedding(16000, 768), nn.ModuleList(Block() for _ in range(6))
            self.head = nn.Linear(768, 16000, bias=False)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.words(ids)
            for block in self.blocks:
                x = block(x, mask)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())

    model: Any = Model().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused="fused" in fixes)
    ids = torch.randint(0, 16000, (8, 512), device="cuda")
    mask = torch.ones(512, 512, device="cuda", dtype=torch.bool).triu(1)
    if "compile" in fixes:
        model = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        model(ids, mask).backward()
        optimizer.step()

    return step


def captured(forward: Step) -> Step:
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    return graph.replay


def vit(fixes: set[str]) -> Step:
    import timm
    import torch

    torch.set_float32_matmul_precision("high" if "tf32" in fixes else "highest")
    model = timm.create_model("vit_small_patch16_224").cuda().eval()
    x = torch.randn(4, 3, 224, 224, device="cuda")

    @torch.no_grad()
    def step() -> None:
        model(x)

    return captured(step) if "graph" in fixes else step


def densenet(fixes: set[str]) -> Step:
    import torch
    import torchvision

    channels = torch.channels_last if "channels_last" in fixes else torch.contiguous_format
    model = torchvision.models.densenet121().to("cuda", torch.bfloat16, memory_format=channels).eval()
    x = torch.randn(16, 3, 224, 224, device="cuda", dtype=torch.bfloat16).to(memory_format=channels)

    @torch.no_grad()
    def step() -> None:
        model(x)

    return captured(step) if "graph" in fixes else step


def unet(fixes: set[str]) -> Step:
    import torch
    from torch import nn

    torch.backends.cudnn.allow_tf32 = "tf32" in fixes
    torch.set_float32_matmul_precision("high" if "tf32" in fixes else "highest")
    channels = torch.channels_last if "channels_last" in fixes else torch.contiguous_format

    def block(a: int, b: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1)
        )

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [64, 128, 256]
            self.first = nn.Conv2d(3, 64, 3, padding=1)
            self.down = nn.ModuleList(block(a, b) for a, b in zip([64, 64, 128], widths, strict=True))
            self.up = nn.ModuleList(block(a, b) for a, b in ((512, 128), (256, 64), (128, 64)))
            self.last = nn.Conv2d(64, 3, 1)

        def forward(self, x: Any) -> Any:
            x, kept = self.first(x), []
            for layer in self.down:
                x = layer(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2)
            for layer in self.up:
                x = nn.functional.interpolate(x, scale_factor=2)
                x = layer(torch.cat([x, kept.pop()], 1))
            return self.last(x)

    model = Unet().cuda().to(memory_format=channels)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(16, 3, 128, 128, device="cuda").to(memory_format=channels)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def experts(fixes: set[str]) -> Step:
    import torch
    from torch import nn

    bank = [nn.Parameter(torch.randn(16, 512, 512, device="cuda") * 0.02) for _ in range(4)]
    optimizer = torch.optim.SGD(bank, 1e-3, fused=True)
    x = torch.randn(16, 256, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        y = x
        for weights in bank:
            each = weights.unbind(0) if "unbind" in fixes else [weights[i] for i in range(16)]
            y = torch.stack([torch.relu(part @ w) for part, w in zip(y, each, strict=True)])
        y.square().mean().backward()
        optimizer.step()

    return step


def average(fixes: set[str]) -> Step:
    import torch
    from torch import nn

    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(1024, 1024), nn.LayerNorm(1024), nn.GELU()) for _ in range(24)]
    )
    model = model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused="fused" in fixes)
    kept = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def update() -> None:
        if "foreach" in fixes:
            torch._foreach_lerp_(kept, list(model.parameters()), 0.01)
            return
        for mean, p in zip(kept, model.parameters(), strict=True):
            mean.mul_(0.99).add_(p, alpha=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        update()

    return step


def loader(fixes: set[str]) -> Step:
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, i: int) -> Any:
            image = np.random.default_rng(i).integers(0, 255, (3, 96, 96), dtype=np.uint8)
            return torch.from_numpy(image).float().div_(255), i % 10

    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
    workers = 8 if "workers" in fixes else 0
    batches = iter(DataLoader(Images(), 64, num_workers=workers, pin_memory=True))

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def person_search(fixes: set[str]) -> Step:
    """Features of persons; biases learn faster, so that each parameter is in a group of its own."""
    import torch
    import torchvision
    from torch import nn

    model = torchvision.models.resnet50(num_classes=751).cuda().to(memory_format=torch.channels_last)
    groups: list[dict[str, Any]] = []
    for name, parameter in model.named_parameters():
        lr, decay = (0.02, 0.0) if "bias" in name else (0.01, 5e-4)
        groups.append({"params": [parameter], "lr": lr, "weight_decay": decay})
    if "groups" in fixes:
        joint: dict[float, dict[str, Any]] = {}
        for group in groups:
            joint.setdefault(group["lr"], {**group, "params": []})["params"] += group["params"]
        groups = list(joint.values())
    optimizer = torch.optim.SGD(groups, momentum=0.9, fused="fused" in fixes or None)
    x = torch.randn(32, 3, 256, 128, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 751, (32,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def shown_scores(fixes: set[str]) -> Step:
    """A net of ``nn.MultiheadAttention``, whose scores are not looked at."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int = 512) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            y, _ = self.attention(y, y, y, need_weights="no-weights" not in fixes)
            x = x + y
            return x + self.net(self.second(x))

    model = nn.Sequential(*[Layer() for _ in range(8)]).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(16, 1024, 512, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def two_views(fixes: set[str]) -> Step:
    """Two views of each image, through the encoder one after the other."""
    import torch
    import torchvision
    from torch import nn

    encoder = torchvision.models.resnet18(num_classes=128).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(encoder.parameters(), fused=True)
    images = torch.randn(64, 3, 96, 96, device="cuda").to(memory_format=torch.channels_last)

    def step() -> None:
        first, second = images + 0.1 * torch.randn_like(images), images.flip(3)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            if "one-pass" in fixes:
                a, b = encoder(torch.cat([first, second])).chunk(2)
            else:
                a = encoder(first)
                b = encoder(second)
        a, b = (nn.functional.normalize(one.float(), dim=1) for one in (a, b))
        nn.functional.cross_entropy(a @ b.T / 0.1, torch.arange(64, device="cuda")).backward()
        optimizer.step()

    return step


def real_and_fake(fixes: set[str]) -> Step:
    """A discriminator's step of a GAN, in which it sees real images and then those that are made."""
    import torch
    from torch import nn

    def block(a: int, b: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, 1, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(b, b, 3, 1, 1),
            nn.LeakyReLU(0.2),
            nn.AvgPool2d(2),
        )

    widths = (3, 64, 128, 256, 512)
    judge = nn.Sequential(
        *(block(a, b) for a, b in pairwise(widths)), nn.Flatten(), nn.Linear(512 * 4, 1)
    ).cuda()
    optimizer = torch.optim.Adam(judge.parameters(), fused=True)
    real, fake = (torch.randn(16, 3, 32, 32, device="cuda") for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        if "one-pass" in fixes:
            of_real, of_fake = judge(torch.cat([real, fake])).chunk(2)
        else:
            of_real = judge(real)
            of_fake = judge(fake)
        (nn.functional.softplus(-of_real) + nn.functional.softplus(of_fake)).mean().backward()
        optimizer.step()

    return step


def tuned(fixes: set[str]) -> Step:
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(6)])
    compiled = torch.compile(model.to("cuda", torch.bfloat16), mode="reduce-overhead")
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        compiled(x)

    return step
