# A loop by accelerate, with accumulated gradients and clipping.
# needs: cpu
# packages: accelerate
import fingerprint
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(480, 10), torch.randint(0, 2, (480,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.print(epoch, f"{loss.item():.6f}", f"{schedule.get_last_lr()[0]:.8f}")
print(fingerprint.weights(accelerator.unwrap_model(model)), fingerprint.draws())
