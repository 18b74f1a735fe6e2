"""Blocks of words that are no neighbours are not computed."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH, WINDOW, HEADS, HEAD = 8192, 256, 12, 64


def near(batch, head, query, key):
    return (query - key).abs() <= WINDOW


def build(device):
    shape = 3, 1, HEADS, LENGTH, HEAD
    qkv = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    block_mask = create_block_mask(near, None, None, LENGTH, LENGTH, device=device)
    attention = torch.compile(flex_attention)

    def step():
        q, k, v = qkv
        attention(q, k, v, block_mask=block_mask).sum().backward()
        qkv.grad = None

    return step
