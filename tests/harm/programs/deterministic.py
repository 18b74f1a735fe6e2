# Everything that torch has for reproducible runs, in force.
# needs: cpu
# variables: CUBLAS_WORKSPACE_CONFIG=:4096:8
import fingerprint
import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
words = nn.Embedding(50, 32).to(device)
model = nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 50, 1)).to(device)
optimizer = torch.optim.Adam([*words.parameters(), *model.parameters()], lr=1e-2)
for step in range(50):
    ids = torch.randint(0, 50, (4, 12), device=device)
    loss = nn.functional.cross_entropy(
        model(words(ids).transpose(1, 2)).transpose(1, 2).flatten(0, 1), ids.flatten()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.6f}")
print(torch.are_deterministic_algorithms_enabled(), fingerprint.weights(words, model), fingerprint.draws())
