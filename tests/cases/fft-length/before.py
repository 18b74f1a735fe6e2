"""A hall's response laid over a clip: the spectra of a full convolution have a prime length."""

import torch

SAMPLES, RESPONSE = 96_000, 48_000


def build(device):
    torch.manual_seed(0)
    dry = torch.randn(32, SAMPLES, device=device)
    hall = torch.randn(RESPONSE, device=device)
    n = SAMPLES + RESPONSE - 1

    def step():
        spectrum = torch.fft.rfft(dry, n=n) * torch.fft.rfft(hall, n=n)
        return torch.fft.irfft(spectrum, n=n)[..., :SAMPLES]

    return step
