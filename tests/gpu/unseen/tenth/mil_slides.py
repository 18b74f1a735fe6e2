"""Is there a tumour anywhere on this slide? Attention over its patches, whose features are known."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 160))
SLIDES, FEW, MANY, FEATURES, WIDTH, INNER, TOLD = (
    (6, 20, 30, 16, 8, 4, 3) if TINY else (40, 11_500, 12_500, 1024, 512, 256, 8)
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Slides(Dataset):
    """Features of all patches of each slide, in host memory; of some slides a few patches are ill."""

    def __init__(self):
        self.labels = torch.randint(2, (SLIDES,)).tolist()
        self.bags = []
        for label in self.labels:
            count = int(torch.randint(FEW, MANY, (1,)))
            bag = torch.randn(count, FEATURES, device=device)
            if label:
                bag[: count // 50, : FEATURES // 8] += 1
            self.bags.append(bag if "bags-on-device" in FIX else bag.cpu())

    def __len__(self):
        return SLIDES

    def __getitem__(self, index):
        return self.bags[index], self.labels[index]


def collate_bags(items):
    if "bags-on-device" in FIX:
        return items[0][0], torch.LongTensor([label for _, label in items])
    return torch.cat([bag for bag, _ in items], 0), torch.LongTensor([label for _, label in items])


class GatedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(WIDTH, INNER), nn.Tanh())
        self.b = nn.Sequential(nn.Linear(WIDTH, INNER), nn.Sigmoid())
        self.c = nn.Linear(INNER, 1)

    def forward(self, x):
        return self.c(self.a(x) * self.b(x))


class AttentionMIL(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU())
        self.attention, self.classify = GatedAttention(), nn.Linear(WIDTH, 2)
        self.patch = nn.Linear(WIDTH, 2)

    def forward(self, bag, label):
        """Logits of the slide, and a loss for the patches that are looked at most and least."""
        x = self.fc(bag)
        scores = self.attention(x).T
        weights = scores.softmax(1)
        ends = torch.cat([weights[0].topk(TOLD).indices, (-weights[0]).topk(TOLD).indices])
        wanted = torch.zeros_like(ends)
        wanted[:TOLD] = label
        return self.classify(weights @ x), F.cross_entropy(self.patch(x[ends]), wanted)


def main():
    cuda = device.type == "cuda"
    loader = DataLoader(Slides(), batch_size=1, shuffle=True, collate_fn=collate_bags)
    model = AttentionMIL().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, weight_decay=1e-5)
    lead, began, step, shown, right = min(STEPS // 2, 6), 0.0, 0, 0.0, 0
    while step < STEPS:
        for bag, label in loader:
            if step == lead:
                if cuda:
                    torch.cuda.synchronize()
                began = time.perf_counter()
            bag, label = bag.to(device), label.to(device)
            logits, patches = model(bag, label)
            loss = 0.7 * F.cross_entropy(logits, label) + 0.3 * patches
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "figures-rarely" not in FIX or step == STEPS - 1:
                shown = loss.item()
                right += int(logits.argmax(1).item() == label.item())
            step += 1
            if step == STEPS:
                break
        print(f"after {step} steps: loss {shown:.4f}")
    if cuda:
        torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / (STEPS - lead)
    print(f"loss {shown:.5f}, {right} right; {each:.4f} ms per slide")


main()
