"""Servers made by hand: steps of a transformer, as their engines mark them or without any mark."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from traces import Event, call, event, host, kernel

Mode = Literal["full", "piecewise", "eager"]


@dataclass
class Server:
    """One thread that launches on one stream; times in µs. A launch takes 5 µs to reach an idle device.

    Args:
        mode: whether a step's layers are one graph, a graph between two attentions, or none.
        marked: with the annotations of SGLang around steps.
        waits: the host waits for the tokens of each step before it schedules the next.
    """

    layers: int = 4
    mode: Mode = "full"
    marked: bool = True
    waits: bool = True
    gemm_us: float = 20.0
    attention_us: float = 15.0
    at: float = 0.0
    free_at: float = 0.0
    events: list[Event] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def launch(self, op: str, *kernels: tuple[str, float], copy: bool = False, graph: bool = False) -> None:
        """A call that puts kernels on the device, one behind the other, in an op of its own."""
        number = next(self.numbers)
        name = "cudaGraphLaunch" if graph else "cudaMemcpyAsync" if copy else "cudaLaunchKernel"
        if op:
            self.events.append(host(op, self.at, 8))
        self.events.append(call(name, self.at + 1, 5, number))
        for kernel_name, us in kernels:
            start = max(self.free_at, self.at + 6)
            made = kernel(kernel_name, start, us, number)
            self.events.append(made | {"cat": "gpu_memcpy"} if copy else made)
            self.free_at = start + us
        self.at += 9

    def layer(self) -> list[tuple[str, float]]:
        return [("rms_norm_kernel", 3.0), ("qkv_gemm", self.gemm_us), ("rotary_embedding", 2.0),
                ("reshape_and_cache_flash_kernel", 2.0), ("flash_fwd_kernel", self.attention_us),
                ("down_gemm", self.gemm_us)]  # fmt: skip

    def step(
        self, batch: int = 8, *, prefill: int = 0, pause: float = 80.0, kind: Mode | None = None
    ) -> None:
        """A step, and a pause of the scheduler behind it."""
        began, mode = self.at, kind or ("eager" if prefill else self.mode)
        self.launch("aten::copy_", ("Memcpy HtoD (Pinned -> Device)", 1.5), copy=True)
        self.launch("aten::embedding", ("vectorized_gather_kernel", 3.0))
        if mode == "full":
            self.launch("", *[one for _ in range(self.layers) for one in self.layer()], graph=True)
        for _ in range(self.layers if mode != "full" else 0):
            if mode == "eager":
                for name, us in self.layer():
                    self.launch(f"ops::{name}", (name, us * (4 if prefill else 1)))
            else:
                self.launch("", *self.layer()[:4], graph=True)
                self.launch("ops::attention", self.layer()[4])
                self.launch("", *self.layer()[5:], graph=True)
        self.launch("aten::mm", ("lm_head_gemm", 30.0))
        self.launch("aten::argmax", ("reduce_kernel_argmax", 4.0))
        self.launch("aten::copy_", ("Memcpy DtoH (Device -> Pinned)", 1.5), copy=True)
        if self.waits:
            until = max(self.free_at + 3, self.at + 2)
            self.events.append(call("cudaStreamSynchronize", self.at + 1, until - self.at - 1, 0))
            self.at = until
        if self.marked:
            said = f"step[EXTEND bs=1 toks={prefill}]" if prefill else f"step[DECODE bs={batch}]"
            self.events.append(event("user_annotation", said, began - 1, self.at - began + 1))
        self.at += pause


def repeated(file: Path, times: int, apart_us: float) -> list[Event]:
    """The events of a recording of one step, several times over."""
    found = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    found = [one for one in found if one.get("ph") == "X"]
    made: list[Event] = []
    for number in range(times):
        for one in found:
            arguments = dict(one.get("args", {}))
            if "correlation" in arguments:
                arguments["correlation"] += 10_000_000 * (number + 1)
            made.append(one | {"ts": one["ts"] + number * apart_us, "args": arguments})
    return made
