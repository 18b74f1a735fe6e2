# Reports what the device's allocator says of it: allocated, peaks, reset, reserved after empty_cache.
# needs: cuda
import fingerprint
import torch
from torch import nn


def say(label):
    torch.cuda.synchronize()
    statistics = torch.cuda.memory_stats()
    print(
        label,
        torch.cuda.memory_allocated(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_reserved(),
        statistics["allocation.all.allocated"],
        statistics["num_alloc_retries"],
        statistics["num_ooms"],
    )


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
say("model")
for step in range(60):
    x = torch.randn(16 + 16 * (step % 4), 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 0:
        say(step)
        torch.cuda.reset_peak_memory_stats()
    if step % 20 == 19:
        torch.cuda.empty_cache()
        say("emptied")
del x, loss
print(fingerprint.weights(model), fingerprint.draws())
