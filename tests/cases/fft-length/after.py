"""The same, with zeros up to 144,000 points, whose factors are 2, 3 and 5."""

import torch

SAMPLES, RESPONSE = 96_000, 48_000


def build(device):
    torch.manual_seed(0)
    dry = torch.randn(32, SAMPLES, device=device)
    hall = torch.randn(RESPONSE, device=device)
    n = 144_000

    def step():
        spectrum = torch.fft.rfft(dry, n=n) * torch.fft.rfft(hall, n=n)
        return torch.fft.irfft(spectrum, n=n)[..., :SAMPLES]

    return step
