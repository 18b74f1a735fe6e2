# A small model of timm, trained with its own loss, scheduler and average of weights.
# needs: cpu
# packages: timm
import fingerprint
import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, img_size=32, patch_size=8, depth=2, num_classes=10
).to(device)
average = ModelEmaV3(model, decay=0.9)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = CosineLRScheduler(optimizer, t_initial=60)
loss_of = LabelSmoothingCrossEntropy()
for step in range(60):
    x = torch.randn(4, 3, 32, 32, device=device)
    loss = loss_of(model(x), torch.randint(0, 10, (4,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step_update(step)
    average.update(model, step=step)
    if step % 20 == 0:
        print(step, f"{loss.item():.5f}")
print(fingerprint.weights(model, average), fingerprint.draws())
