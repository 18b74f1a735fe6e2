"""Training on two GPUs or more, in parallel in one of several ways, with one rank slow for one cause.

torchrun --nproc-per-node 2 parallel.py
    --way ddp|fsdp|tensor|pipeline|1f1b --slow none|host|kernel|loader|sync
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

DIM, BATCH, LAYERS, SLOW_S = 2048, 2048, 4, 0.02


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def parallel(way: str, model: nn.Sequential, world: int) -> nn.Module:
    if way == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cuda", (world,))
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


class Batches(torch.utils.data.IterableDataset):
    """Batches on the host, each late by ``wait_s``."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self.wait_s)
            yield torch.ones(BATCH, DIM, dtype=torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", default="ddp")
    parser.add_argument("--slow", default="none")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    own = options.slow if rank == world - 1 else "none"
    torch.manual_seed(0)
    more = torch.randn(4 * DIM, 4 * DIM, device="cuda", dtype=torch.bfloat16)
    if options.way in ("pipeline", "1f1b"):
        pipeline(rank, world, options.steps, options.way, own, more)
        dist.destroy_process_group()
        return
    layers = nn.Sequential(*(Block() for _ in range(LAYERS))).cuda().bfloat16()
    model = parallel(options.way, layers, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    batches = iter(torch.utils.data.DataLoader(Batches(SLOW_S if own == "loader" else 0.0), batch_size=None))
    for _ in range(options.steps):
        x = next(batches).cuda()
        hold_back(own, more)
        if own == "sync":
            torch.cuda.synchronize()
            time.sleep(SLOW_S / 4)
        loss = model(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
    dist.destroy_process_group()


def hold_back(own: str, more: torch.Tensor) -> None:
    if own == "host":
        time.sleep(SLOW_S)
    if own == "kernel":
        for _ in range(12):
            more @ more


def pipeline(rank: int, world: int, steps: int, way: str, own: str, more: torch.Tensor) -> None:
    """One stage a rank, eight microbatches per step; all forward before all backward, or by turns."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage_module = Block().cuda().bfloat16()
    stage = PipelineStage(stage_module, rank, world, torch.device("cuda"))
    kind = Schedule1F1B if way == "1f1b" else ScheduleGPipe
    schedule = kind(stage, 8, loss_fn=lambda y, target: (y - target).float().square().mean())
    optimizer = torch.optim.AdamW(stage_module.parameters(), lr=1e-4)
    x = torch.randn(BATCH, DIM, device="cuda", dtype=torch.bfloat16)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        hold_back(own, more)
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x)
        else:
            schedule.step()
        optimizer.step()


if __name__ == "__main__":
    main()
