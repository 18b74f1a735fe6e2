"""What watching costs: a step plain, with device events, and under each way of recording. Run on a CUDA
device:

    python tests/gpu/price_of_watching.py OUT

Interleaved rounds; each figure is wall time of 20 steps in a row, the device waited for at both ends.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import proving

STEPS, ROUNDS = 20, 3
Step = Callable[[], Any]


def bert() -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024)
    model = BertForSequenceClassification(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 30000, (16, 128), device="cuda")
    labels = torch.randint(0, 2, (16,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()

    return step


def resnet() -> Step:
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def mlp() -> Step:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(20)]).cuda()
    x = torch.randn(64, 512, device="cuda")

    @torch.no_grad()
    def step() -> None:
        model(x)

    return step


@contextmanager
def plain() -> Iterator[None]:
    yield


@contextmanager
def kineto(*kinds: ProfilerActivity, **options: Any) -> Iterator[None]:
    p = profile(activities=kinds, **options)
    p.prepare_trace()
    p.start_trace()
    yield
    p.stop_trace()


@contextmanager
def cupti(*kinds: str) -> Iterator[None]:
    from cupti import cupti as c

    records: list[Any] = []

    def requested() -> tuple[int, int]:
        return 8 << 20, 0

    def completed(activities: list[Any]) -> None:
        records.append(len(activities))

    c.activity_register_callbacks(requested, completed)
    wanted = [getattr(c.ActivityKind, kind) for kind in kinds]
    for kind in wanted:
        c.activity_enable(kind)
    yield
    torch.cuda.synchronize()
    for kind in wanted:
        c.activity_disable(kind)
    c.activity_flush_all(1)
    COUNTS.append(sum(records))


COUNTS: list[int] = []
CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA
WAYS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "events": plain,
    "cupti kernels": lambda: cupti("CONCURRENT_KERNEL", "MEMCPY", "MEMSET"),
    "cupti +runtime": lambda: cupti("CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "RUNTIME"),
    "kineto device": lambda: kineto(CUDA),
    "kineto both": lambda: kineto(CPU, CUDA),
    "kineto shapes": lambda: kineto(CPU, CUDA, record_shapes=True),
    "plain again": plain,
}


def timed(step: Step, way: str) -> float:
    with WAYS[way]():
        for _ in range(3):
            step()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(STEPS):
            if way == "events":
                events[i].record()
            step()
        if way == "events":
            events[-1].record()
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) / STEPS
    return took * 1e6


def main() -> None:
    out = proving.arguments(__doc__).parse_args().out
    found: dict[str, dict[str, float]] = {}
    for make in (mlp, bert, resnet):
        step = make()
        for _ in range(10):
            step()
        rounds: dict[str, list[float]] = {way: [] for way in WAYS}
        broken: dict[str, str] = {}
        for _ in range(ROUNDS):
            for way in WAYS:
                if way in broken:
                    continue
                try:
                    rounds[way].append(timed(step, way))
                except Exception as error:
                    broken[way] = f"{type(error).__name__}: {error}"
        found[make.__name__] = {way: statistics.median(us) for way, us in rounds.items() if us}
        base = found[make.__name__]["plain"]
        print(
            f"{make.__name__:8}",
            *(f"{way}: {us:.0f} µs ({us / base:.2f})" for way, us in found[make.__name__].items()),
            broken or "",
            sep="  ",
            flush=True,
        )
        del step
    print("cupti records", COUNTS)
    (out / "price.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
