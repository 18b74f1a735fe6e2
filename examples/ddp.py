"""Data-parallel training, one process a device (gloo on CPUs, NCCL on GPUs).

torchrun --nproc-per-node 2 ddp.py
torchrun --nproc-per-node 2 ddp.py --straggler 1    # rank 1 is held back 20 ms per step
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--straggler", type=int, default=-1, help="the rank that sleeps 20 ms per step")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(options.dim, options.dim), nn.GELU()) for _ in range(options.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    for _ in range(options.steps):
        if rank == options.straggler:
            time.sleep(0.02)
        loss = model(torch.randn(options.batch, options.dim, device=device)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"rank {rank} of {dist.get_world_size()}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
