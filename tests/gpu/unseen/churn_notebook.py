# %% [markdown]
# # Who will leave? A little net on customer tables

# %%
import gc
import os
import time

import numpy as np
import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
device = "cuda" if torch.cuda.is_available() else "cpu"
np.random.seed(2024)
torch.manual_seed(2024)

# %% the data
n = 2_000 if TINY else 200_000
n_num, cards = 40, [12, 50, 7, 300, 24, 1000, 5, 90]
X_num = np.random.randn(n, n_num).astype("float32")
X_cat = np.stack([np.random.randint(0, c, n) for c in cards], 1)
y = (X_num[:, :5].sum(1) + np.random.randn(n) > 0).astype("float32")
cut = int(n * 0.8)
train = [torch.tensor(a[:cut]).to(device) for a in (X_num, X_cat, y)]
valid = [torch.tensor(a[cut:]).to(device) for a in (X_num, X_cat, y)]


# %% the model
class TabularNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(c, min(50, (c + 1) // 2)) for c in cards])
        n_emb = sum(e.embedding_dim for e in self.embeds)
        self.bn = nn.BatchNorm1d(n_num)
        layers, size = [], n_emb + n_num
        for out in (512, 256, 128):
            layers += [nn.Linear(size, out), nn.ReLU(), nn.BatchNorm1d(out), nn.Dropout(0.2)]
            size = out
        self.layers = nn.Sequential(*layers, nn.Linear(size, 1))

    def forward(self, num, cat):
        x = torch.cat([e(cat[:, i]) for i, e in enumerate(self.embeds)], 1)
        return self.layers(torch.cat([x, self.bn(num)], 1)).squeeze(1)


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = labels.sum()
    return (ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))


# %% training
model = TabularNet().to(device)
loss_fn = nn.BCEWithLogitsLoss()
opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True if "fused" in FIX else None)
batch_size = 512
batches = (cut + batch_size - 1) // batch_size
epochs = max(2, int(os.environ.get("STEPS", 0 if TINY else 5000)) // batches)
history = {"loss": [], "acc": [], "val_loss": [], "val_auc": []}
train_time, trained, epoch_times = 0, 0, []

for epoch in range(epochs):
    epoch_start = time.time()
    perm = torch.randperm(cut)
    if "perm-on-device" in FIX:
        perm = perm.to(device)
    model.train()
    for b in range(batches):
        idx = perm[b * batch_size : (b + 1) * batch_size]
        num, cat, target = (t[idx] for t in train)
        out = model(num, cat)
        loss = loss_fn(out, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if "no-item" in FIX:
            history["loss"].append(loss.detach())
            history["acc"].append(((out > 0) == target).float().mean())
        else:
            history["loss"].append(loss.item())
            history["acc"].append(((out > 0) == target).float().mean().item())
        if b % 20 == 0 and "no-gc" not in FIX:  # or it runs out of memory sooner or later
            del num, cat, target, out, loss
            gc.collect()
            torch.cuda.empty_cache()
    if device == "cuda":
        torch.cuda.synchronize()
    if epoch:
        train_time += time.time() - epoch_start
        trained += batches
    model.eval()
    scores, val_loss = [], []
    with torch.no_grad():
        for b in range(0, len(valid[2]), batch_size):
            num, cat, target = (t[b : b + batch_size] for t in valid)
            out = model(num, cat)
            val_loss.append(loss_fn(out, target).item())
            scores.append(out.sigmoid().cpu().numpy())
    history["val_loss"].append(np.mean(val_loss))
    history["val_auc"].append(auc(np.concatenate(scores), valid[2].cpu().numpy()))
    epoch_times.append(time.time() - epoch_start)
    print(
        f"epoch {epoch:3d} loss {float(sum(history['loss'][-batches:])) / batches:.4f} "
        f"val_loss {history['val_loss'][-1]:.4f} val_auc {history['val_auc'][-1]:.4f} {epoch_times[-1]:.2f} s"
    )

# %%
print(f"training: {train_time / trained * 1000:.4f} ms per batch, epoch {np.mean(epoch_times[1:]):.4f} s")
