# DistributedDataParallel on the CPU by gloo, two processes by torchrun.
# needs: cpu
# variables: CUDA_VISIBLE_DEVICES=
# launcher: -m torch.distributed.run --nproc-per-node 2 --standalone
import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(60):
    x = torch.randn(4, 16)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach_())
    if step % 20 == 0 and dist.get_rank() == 0:
        print(step, f"{loss.item():.6f}", flush=True)
if dist.get_rank() == 0:
    print(fingerprint.weights(model), fingerprint.draws(), flush=True)
dist.barrier()
dist.destroy_process_group()
