"""DreamBooth: teach a latent diffusion model one dog from eight photographs, with prior preservation."""

import os
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 24))
SIDE, BATCH, VAE_WIDTH, WIDTH, TEXT, TOKENS, HEADS, OWN, PRIOR = (
    (32, 1, 8, 16, 16, 8, 2, 2, 4) if TINY else (512, 2, 96, 160, 512, 77, 8, 8, 32)
)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time_width=0):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs) if time_width else None
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t=None):
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None:
            y = y + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention of places to each other, or to words."""

    def __init__(self, width, context):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(context, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, context=None):
        y = self.norm(x)
        b, n, w = x.shape
        k, v = self.kv(y if context is None else context).view(b, -1, 2, HEADS, w // HEADS).unbind(2)
        q = self.q(y).view(b, n, HEADS, -1)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return x + self.out(y.transpose(1, 2).reshape(b, n, w))


class AutoencoderKL(nn.Module):
    """The encoder of the autoencoder; nobody decodes here."""

    def __init__(self):
        super().__init__()
        widths = [VAE_WIDTH, 2 * VAE_WIDTH, 4 * VAE_WIDTH, 4 * VAE_WIDTH]
        layers, inputs = [nn.Conv2d(3, VAE_WIDTH, 3, padding=1)], VAE_WIDTH
        for level, outputs in enumerate(widths):
            layers += [ResBlock(inputs, outputs), ResBlock(outputs, outputs)]
            if level < 3:
                layers.append(nn.Conv2d(outputs, outputs, 3, 2, 1))
            inputs = outputs
        self.encoder = nn.Sequential(*layers, nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, 8, 1))

    def encode(self, images):
        mean, logvar = self.encoder(images).chunk(2, 1)
        return mean, torch.exp(0.5 * logvar.clamp(-30, 20))


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            TEXT, HEADS, 4 * TEXT, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.embed, self.place = nn.Embedding(49408, TEXT), nn.Parameter(0.01 * torch.randn(TOKENS, TEXT))
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.embed(ids) + self.place)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        w, t = WIDTH, 4 * WIDTH
        self.time = nn.Sequential(nn.Linear(w, t), nn.SiLU(), nn.Linear(t, t))
        self.first, self.last = nn.Conv2d(4, w, 3, padding=1), nn.Conv2d(w, 4, 3, padding=1)
        self.down1, self.down2 = ResBlock(w, w, t), ResBlock(w, 2 * w, t)
        self.mid1, self.mid2 = ResBlock(2 * w, 2 * w, t), ResBlock(2 * w, 2 * w, t)
        self.attend = nn.ModuleList(Attention(2 * w, c) for c in (2 * w, TEXT, 2 * w, TEXT))
        self.up2, self.up1 = ResBlock(4 * w, w, t), ResBlock(2 * w, w, t)
        self.pool, self.norm = nn.Conv2d(w, w, 3, 2, 1), nn.GroupNorm(8, w)

    def attended(self, x, first, words):
        y = x.flatten(2).transpose(1, 2)
        y = self.attend[first + 1](self.attend[first](y), words)
        return y.transpose(1, 2).reshape(x.shape)

    def forward(self, x, timesteps, words):
        half = WIDTH // 2
        waves = torch.exp(-9.2 * torch.arange(half, device=x.device) / half) * timesteps[:, None]
        t = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        a = self.down1(self.first(x), t)
        b = self.attended(self.down2(self.pool(a), t), 0, words)
        y = self.attended(self.mid1(b, t), 2, words)
        y = self.up2(torch.cat([self.mid2(y, t), b], 1), t)
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2.0), a], 1), t)
        return self.last(F.silu(self.norm(y)))


class DreamBoothDataset(Dataset):
    """Each photograph with one of the pictures of its class, and the prompts of both."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.own = torch.randint(0, 255, (OWN, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        self.prior = torch.randint(0, 255, (PRIOR, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        self.prompts = torch.randint(49408, (2, TOKENS), generator=generator)

    def __len__(self):
        return PRIOR

    def __getitem__(self, idx):
        return idx % OWN, idx, self.own[idx % OWN], self.prior[idx], self.prompts[0], self.prompts[1]


def main():
    cuda = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    set_seed(0)
    dataset = DreamBoothDataset()
    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, pin_memory=cuda)
    vae, text, unet = AutoencoderKL().requires_grad_(False), TextEncoder().requires_grad_(False), UNet()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=5e-6)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    vae.to(accelerator.device).eval()  # in float32: in half precision it overflows
    text.to(accelerator.device, torch.bfloat16 if cuda else torch.float32).eval()
    alphas = torch.linspace(0.9999, 0.98, 1000, device=accelerator.device).cumprod(0)

    @torch.no_grad()
    def encoded(images):
        return vae.encode(images.float() / 127.5 - 1)

    if "latents-cached" in FIX:
        kept = [
            [
                torch.cat(one)
                for one in zip(*(encoded(p[None].to(accelerator.device)) for p in pictures), strict=True)
            ]
            for pictures in (dataset.own, dataset.prior)
        ]
    step, times, shown = 0, [], 0.0
    while step < STEPS:
        began = time.perf_counter()
        for own_idx, prior_idx, own, prior, own_ids, prior_ids in loader:
            if step == STEPS:
                break
            if "latents-cached" in FIX:
                (a, c), (b, d) = (
                    [one[i] for one in k] for k, i in zip(kept, (own_idx, prior_idx), strict=True)
                )
                mean, std = torch.cat([a, b]), torch.cat([c, d])
            else:
                mean, std = encoded(torch.cat([own, prior]))
            latents = (mean + std * torch.randn_like(mean)) * 0.18215
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
            alpha = alphas[timesteps][:, None, None, None]
            noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
            with torch.no_grad():
                words = text(torch.cat([own_ids, prior_ids])).float()
            predicted = unet(noisy, timesteps, words).float()
            (p_own, p_prior), (n_own, n_prior) = predicted.chunk(2), noise.chunk(2)
            loss = F.mse_loss(p_own, n_own) + F.mse_loss(p_prior, n_prior)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
                shown = loss.detach().item()
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            step += 1
    timed = times[min(STEPS // 2, 5) :]
    accelerator.print(f"loss {shown:.5f}; {1e3 * sum(timed) / len(timed):.3f} ms per step")


if __name__ == "__main__":
    main()
