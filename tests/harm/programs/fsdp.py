# FSDP2 on two GPUs: blocks sharded by fully_shard, mixed precision, a gathered state at the end.
# needs: cuda2
# launcher: -m torch.distributed.run --nproc-per-node 2 --standalone
import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4))).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for step in range(60):
    x = torch.randn(16, 128, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(step, f"{total.item():.4f}", flush=True)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0:
    print(fingerprint.tensors(*state.values()), fingerprint.draws(), flush=True)
dist.barrier()
dist.destroy_process_group()
