# Two models and three optimizers in turn, with schedules; one optimizer takes a closure.
# needs: cpu
import fingerprint
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
encoder, decoder = nn.Linear(16, 4).to(device), nn.Linear(4, 16).to(device)
slow = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
fast = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
exact = torch.optim.LBFGS([*encoder.parameters(), *decoder.parameters()], max_iter=3)
schedules = [torch.optim.lr_scheduler.StepLR(slow, 20), torch.optim.lr_scheduler.ExponentialLR(fast, 0.99)]
for step in range(60):
    x = torch.randn(8, 16, device=device)

    def closure(x=x):
        exact.zero_grad()
        loss = (decoder(encoder(x)) - x).square().mean()
        loss.backward()
        return loss

    if step % 10 == 9:
        loss = exact.step(closure)
    else:
        loss = closure()
        slow.step()
        if step % 2:
            fast.step()
        for schedule in schedules:
            schedule.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.6f}", [f"{s.get_last_lr()[0]:.6f}" for s in schedules])
print(fingerprint.weights(encoder, decoder), fingerprint.draws())
