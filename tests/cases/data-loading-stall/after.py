"""The same samples, made once and kept on the device."""

import torch


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        image = torch.full((64, 64), float(index % 7))
        for _ in range(4):
            image = (image - image.mean()) / (image.std() + 1.0)
        return image


def build(device):
    samples = Slow()
    batch = torch.stack([samples[i] for i in range(32)]).to(device)
    w = torch.randn(4096, 8192, device=device)

    def step():
        return batch.reshape(32, -1) @ w

    return step
