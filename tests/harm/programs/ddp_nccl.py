# DistributedDataParallel on two GPUs by NCCL, two processes by torchrun; one collective runs outside of it.
# needs: cuda2
# launcher: -m torch.distributed.run --nproc-per-node 2 --standalone
import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 16).cuda(), device_ids=[dist.get_rank()])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(60):
    x = torch.randn(4, 16, device="cuda")
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
