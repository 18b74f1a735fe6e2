"""A small student learns from a frozen teacher, which is asked again for the same samples in each epoch."""

import torch

SAMPLES, BATCH, WIDTH = 32_768, 8192, 1024


def layers(number, width):
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, width),
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(number)),
        torch.nn.Linear(width, 100),
    )


def build(device):
    torch.backends.cuda.matmul.allow_tf32 = True
    teacher, student = layers(12, 4096).to(device).eval(), layers(2, 512).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    samples = torch.randn(SAMPLES, WIDTH, device=device)

    def step():
        rows = torch.randint(0, SAMPLES, (BATCH,), device=device)
        with torch.no_grad():
            answers = teacher(samples[rows])
        torch.nn.functional.mse_loss(student(samples[rows]), answers).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
