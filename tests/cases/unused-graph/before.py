"""A small student learns from a teacher of forty layers, whose graph autograd records and none uses."""

import torch

WIDTH = 256


def layers(number):
    return torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.GELU())
            for _ in range(number)
        )
    )


def build(device):
    teacher, student = layers(40).to(device).eval(), layers(4).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    inputs = torch.randn(256, WIDTH, device=device)

    def step():
        answers = teacher(inputs).detach()
        torch.nn.functional.mse_loss(student(inputs), answers).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
