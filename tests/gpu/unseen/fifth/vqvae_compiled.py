"""A VQ-VAE with a codebook of 8192, moved by averages; the quantizer is compiled."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 5 if TINY else 60))
BATCH, SIDE, HIDDEN, RES_HIDDEN, CODES, DIM = (2, 16, 8, 4, 32, 8) if TINY else (32, 128, 128, 32, 8192, 64)
COMMITMENT, DECAY, EPSILON = 0.25, 0.99, 1e-5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")


class VectorQuantizerEMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("embedding", torch.randn(CODES, DIM))
        self.register_buffer("ema_cluster_size", torch.zeros(CODES))
        self.register_buffer("ema_w", torch.randn(CODES, DIM))

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        flat_input = inputs.view(-1, DIM)
        distances = (
            torch.sum(flat_input**2, dim=1, keepdim=True)
            + torch.sum(self.embedding**2, dim=1)
            - 2 * torch.matmul(flat_input, self.embedding.t())
        )
        encoding_indices = torch.argmin(distances, dim=1)
        if "lookup" in FIX:
            quantized = F.embedding(encoding_indices, self.embedding).view(inputs.shape)
        else:
            encodings = torch.zeros(len(encoding_indices), CODES, device=inputs.device)
            encodings.scatter_(1, encoding_indices.unsqueeze(1), 1.0)
            quantized = torch.matmul(encodings, self.embedding).view(inputs.shape)
        with torch.no_grad():
            if "lookup" in FIX:
                ones = torch.ones(len(encoding_indices), device=inputs.device)
                counts = torch.zeros(CODES, device=inputs.device).index_add(0, encoding_indices, ones)
                dw = torch.zeros_like(self.ema_w).index_add(0, encoding_indices, flat_input.detach())
            else:
                counts, dw = torch.sum(encodings, 0), torch.matmul(encodings.t(), flat_input.detach())
            size = self.ema_cluster_size * DECAY + (1 - DECAY) * counts
            n = torch.sum(size)
            size = (size + EPSILON) / (n + CODES * EPSILON) * n
            self.ema_cluster_size.copy_(size)
            self.ema_w.mul_(DECAY).add_(dw, alpha=1 - DECAY)
        loss = COMMITMENT * F.mse_loss(quantized.detach(), inputs)
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = counts / len(encoding_indices)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        if "perplexity-as-tensor" not in FIX:
            perplexity = perplexity.item()  # only looked at
        with torch.no_grad():
            self.embedding.copy_(self.ema_w / self.ema_cluster_size.unsqueeze(1))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(HIDDEN, RES_HIDDEN, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(RES_HIDDEN, HIDDEN, 1, bias=False),
        )

    def forward(self, x):
        return x + self.block(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        h = HIDDEN
        self.encoder = nn.Sequential(
            nn.Conv2d(3, h // 2, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(h // 2, h, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(h, h, 3, padding=1),
            Residual(),
            Residual(),
            nn.ReLU(),
            nn.Conv2d(h, DIM, 1),
        )
        self.vq_vae = VectorQuantizerEMA()
        self.decoder = nn.Sequential(
            nn.Conv2d(DIM, h, 3, padding=1),
            Residual(),
            Residual(),
            nn.ReLU(),
            nn.ConvTranspose2d(h, h // 2, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(h // 2, 3, 4, 2, 1),
        )

    def forward(self, x):
        loss, quantized, perplexity = self.vq_vae(self.encoder(x))
        return loss, self.decoder(quantized), perplexity


def paintings(size):
    """Smooth colours with edges."""
    coarse = torch.rand(size, 3, 8, 8, device=device)
    return F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear") + 0.3 * (
        F.interpolate(coarse, size=(SIDE, SIDE)) > 0.5
    )


training_data = paintings(16 * BATCH) - 0.6
data_variance = training_data.var().item()
model = Model().to(device)
model.vq_vae = torch.compile(model.vq_vae, backend="inductor" if device.type == "cuda" else "aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_res_recon_error, train_res_perplexity, times = [], [], []
for i in range(STEPS):
    began = time.time()
    data = training_data[torch.randint(0, len(training_data), (BATCH,)).to(device)]
    optimizer.zero_grad()
    vq_loss, data_recon, perplexity = model(data)
    recon_error = F.mse_loss(data_recon, data) / data_variance
    loss = recon_error + vq_loss
    loss.backward()
    optimizer.step()
    train_res_recon_error.append(recon_error.item())
    train_res_perplexity.append(float(perplexity))
    times.append(time.time() - began)
    if i % 50 == 0:
        seen = f"recon_error: {train_res_recon_error[-1]:.4f}, perplexity: {train_res_perplexity[-1]:.1f}"
        print(f"{i} iterations, {seen}")
kept = times[min(STEPS // 2, 12) :]
print(f"recon_error {train_res_recon_error[-1]:.5f}; {1e3 * sum(kept) / len(kept):.3f} ms/iteration")
