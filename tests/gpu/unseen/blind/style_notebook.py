# %% [markdown]
# # Neural style transfer
# A picture gets the *style* of a second and the *content* of a third (Gatys et al.), by L-BFGS.

# %%
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
NUM_STEPS = int(os.environ.get("STEPS", 3 if TINY else 16))  # of L-BFGS, each of twenty evaluations
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(4)
imsize = 32 if TINY else 512


# %% [markdown]
# ## Pictures
# Ours lie on a server that is gone; waves and blots will do.


# %%
def waves(frequency, turn):
    y, x = torch.meshgrid(torch.linspace(0, 1, imsize), torch.linspace(0, 1, imsize), indexing="ij")
    phase = frequency * (x * torch.cos(torch.tensor(turn)) + y * torch.sin(torch.tensor(turn)))
    return torch.stack([0.5 + 0.5 * torch.sin(6.28 * phase + shift) for shift in (0.0, 2.1, 4.2)])


def blots(count):
    coarse = torch.rand(1, 3, count, count)
    return F.interpolate(coarse, size=(imsize, imsize), mode="bicubic").squeeze(0).clamp(0, 1)


style_img = (0.5 * waves(20.0, 0.7) + 0.5 * waves(31.0, 2.0)).unsqueeze(0).to(device)
content_img = blots(9).unsqueeze(0).to(device)

# %% [markdown]
# ## The network
# VGG-19 as far as the fifth block.

# %%
width = 8 if TINY else 64
config = [1, 1, "M", 2, 2, "M", 4, 4, 4, 4, "M", 8, 8, 8, 8, "M", 8]
style_layers = {"conv_1", "conv_3", "conv_5", "conv_9", "conv_13"}
content_layers = {"conv_10"}


class VGG(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1))
        self.layers, channels, number = nn.ModuleDict(), 3, 0
        for i, c in enumerate(config):
            if c == "M":
                self.layers[f"pool_{i}"] = nn.MaxPool2d(2)
            else:
                number += 1
                conv = nn.Conv2d(channels, c * width, 3, padding=1)
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                self.layers[f"conv_{number}"], self.layers[f"relu_{number}"] = conv, nn.ReLU()
                channels = c * width

    def forward(self, x):
        x = (x - self.mean) / self.std
        kept = {}
        for name, layer in self.layers.items():
            x = layer(x)
            if name in style_layers | content_layers:
                kept[name] = x
        return kept


cnn = VGG().to(device).eval()
if "frozen" in FIX:
    cnn.requires_grad_(False)


def gram_matrix(features):
    b, c, h, w = features.size()
    flat = features.view(b * c, h * w)
    return torch.mm(flat, flat.t()).div(b * c * h * w)


# %%
if "targets-once" in FIX:
    with torch.no_grad():
        style_target, content_target = cnn(style_img), cnn(content_img)


def losses(img):
    found = cnn(img)
    if "targets-once" in FIX:
        style, content = style_target, content_target
    else:
        style, content = cnn(style_img), cnn(content_img)
    style_score = sum(
        F.mse_loss(gram_matrix(found[layer]), gram_matrix(style[layer].detach())) for layer in style_layers
    )
    content_score = sum(F.mse_loss(found[layer], content[layer].detach()) for layer in content_layers)
    return style_score, content_score


# %%
input_img = content_img.clone().requires_grad_(True)
history = {"history_size": 10} if "short-history" in FIX else {}
optimizer = torch.optim.LBFGS([input_img], **history)
style_weight, content_weight = 1000, 1
run = [0]


def closure():
    with torch.no_grad():
        input_img.clamp_(0, 1)
    optimizer.zero_grad()
    style_score, content_score = losses(input_img)
    loss = style_weight * style_score + content_weight * content_score
    loss.backward()
    run[0] += 1
    if run[0] % 50 == 0:
        print(f"run {run}: style {style_score.item():.5f} content {content_score.item():.5f}")
    return loss


# %%
print("Optimizing..")
settled = min(6, NUM_STEPS // 2)  # by then the history is full
for step in range(NUM_STEPS):
    if step == settled:
        if device.type == "cuda":
            torch.cuda.synchronize()
        t0, run0 = time.time(), run[0]
    last = optimizer.step(closure)
result = input_img.detach().clamp(0, 1).cpu()
spent = time.time() - t0

# %%
print(f"loss {last.item():.5f}, {run[0]} evaluations, mean pixel {result.mean():.4f}")
print(f"{1e3 * spent / (run[0] - run0):.4f} ms per evaluation")
