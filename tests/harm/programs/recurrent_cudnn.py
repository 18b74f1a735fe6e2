# A recurrent network and convolutions by cuDNN, with its benchmark of algorithms on, and inputs of many
# shapes.
# needs: cuda
# exact: no
import torch
from torch import nn

torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
front = nn.Conv1d(8, 32, 5, padding=2).cuda()
body = nn.LSTM(32, 64, num_layers=2, dropout=0.1, batch_first=True).cuda()
head = nn.Linear(64, 8).cuda()
optimizer = torch.optim.Adam([*front.parameters(), *body.parameters(), *head.parameters()], lr=1e-3)
for step in range(60):
    x = torch.randn(4, 8, 20 + step % 5, device="cuda")
    hidden, _ = body(front(x).transpose(1, 2))
    loss = (head(hidden).transpose(1, 2) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(step, bool(loss.isfinite()))
