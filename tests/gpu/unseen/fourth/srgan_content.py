"""Four times larger pictures with an SRGAN: residual generator, patch discriminator, VGG features as loss."""

import os
import time

import torch
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))
HR, BATCH, BLOCKS, WIDTH = (32, 2, 2, 8) if TINY else (256, 16, 16, 64)
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
torch.manual_seed(0)


class FeatureExtractor(nn.Module):
    """VGG-19 until the fourth convolution of its third stage; its weights would be downloaded."""

    def __init__(self):
        super().__init__()
        layers, ch = [], 3
        for width, convs in ((1, 2), (2, 2), (4, 4)):
            for _ in range(convs):
                layers += [nn.Conv2d(ch, width * WIDTH, 3, padding=1), nn.ReLU(inplace=True)]
                ch = width * WIDTH
            layers.append(nn.MaxPool2d(2))
        self.feature_extractor = nn.Sequential(*layers[:-1])

    def forward(self, img):
        return self.feature_extractor(img)


class ResidualBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.BatchNorm2d(ch, 0.8),
            nn.PReLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.BatchNorm2d(ch, 0.8),
        )

    def forward(self, x):
        return x + self.conv_block(x)


class GeneratorResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(3, WIDTH, 9, padding=4), nn.PReLU())
        self.res_blocks = nn.Sequential(*(ResidualBlock(WIDTH) for _ in range(BLOCKS)))
        self.conv2 = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH, 0.8))
        upsampling = []
        for _ in range(2):
            upsampling += [nn.Conv2d(WIDTH, 4 * WIDTH, 3, padding=1), nn.BatchNorm2d(4 * WIDTH)]
            upsampling += [nn.PixelShuffle(2), nn.PReLU()]
        self.upsampling = nn.Sequential(*upsampling)
        self.conv3 = nn.Sequential(nn.Conv2d(WIDTH, 3, 9, padding=4), nn.Tanh())

    def forward(self, x):
        out1 = self.conv1(x)
        out = out1 + self.conv2(self.res_blocks(out1))
        return self.conv3(self.upsampling(out))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, in_filters = [], 3
        for i, out_filters in enumerate((WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH)):
            layers.append(nn.Conv2d(in_filters, out_filters, 3, padding=1))
            if i:
                layers.append(nn.BatchNorm2d(out_filters))
            layers += [
                nn.LeakyReLU(0.2, inplace=True),
                nn.Conv2d(out_filters, out_filters, 3, stride=2, padding=1),
            ]
            layers += [nn.BatchNorm2d(out_filters), nn.LeakyReLU(0.2, inplace=True)]
            in_filters = out_filters
        self.model = nn.Sequential(*layers, nn.Conv2d(in_filters, 1, 3, padding=1))

    def forward(self, img):
        return self.model(img)


def weights_init_normal(m):
    if isinstance(m, nn.Conv2d):
        nn.init.normal_(m.weight, 0.0, 0.02)


generator, discriminator = GeneratorResNet().to(device), Discriminator().to(device)
generator.apply(weights_init_normal)
discriminator.apply(weights_init_normal)
feature_extractor = FeatureExtractor().to(device)
feature_extractor.eval()
if "freeze-features" in FIX:
    feature_extractor.requires_grad_(False)
layout = torch.channels_last if "amp" in FIX else torch.contiguous_format
if "amp" in FIX:
    for net in (generator, discriminator, feature_extractor):
        net.to(memory_format=layout)

criterion_GAN, criterion_content = nn.MSELoss(), nn.L1Loss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
dataset = torch.randint(0, 256, (16 if TINY else 256, 3, HR, HR), dtype=torch.uint8)
if cuda:
    dataset = dataset.pin_memory()


def dataloader():
    while True:
        for start in range(0, len(dataset) - BATCH + 1, BATCH):
            imgs_hr = dataset[start : start + BATCH].to(device, non_blocking=True).float() / 127.5 - 1
            yield (
                nn.functional.avg_pool2d(imgs_hr, 4).contiguous(memory_format=layout),
                imgs_hr.contiguous(memory_format=layout),
            )


def autocast():
    return torch.autocast(device.type, torch.bfloat16, enabled="amp" in FIX)


batches, times = dataloader(), []
for i in range(STEPS):
    start = time.time()
    imgs_lr, imgs_hr = next(batches)
    valid = torch.ones(BATCH, 1, HR // 16, HR // 16, device=device)
    fake = torch.zeros(BATCH, 1, HR // 16, HR // 16, device=device)

    # Train the generator
    optimizer_G.zero_grad()
    with autocast():
        gen_hr = generator(imgs_lr)
        loss_GAN = criterion_GAN(discriminator(gen_hr).float(), valid)
        gen_features = feature_extractor(gen_hr)
        real_features = feature_extractor(imgs_hr)
        loss_content = criterion_content(gen_features.float(), real_features.detach().float())
        loss_G = loss_content + 1e-3 * loss_GAN
    loss_G.backward()
    optimizer_G.step()

    # Train the discriminator
    optimizer_D.zero_grad()
    with autocast():
        loss_real = criterion_GAN(discriminator(imgs_hr).float(), valid)
        loss_fake = criterion_GAN(discriminator(gen_hr.detach()).float(), fake)
        loss_D = (loss_real + loss_fake) / 2
    loss_D.backward()
    optimizer_D.step()

    line = f"[Epoch 0/200] [Batch {i}/{STEPS}] [D loss: {loss_D.item():.6f}] [G loss: {loss_G.item():.6f}]"
    times.append(time.time() - start)
    if i % 10 == 0 or i == STEPS - 1:
        print(line)
kept = times[min(STEPS // 2, 8) :]
print(f"{sum(kept) / len(kept):.6f} s/it")
