"""Fine-tune low-rank adapters over int8 weights: one sequence at a time fits any card, eight make a step."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 3 if TINY else 40))
DIM, HIDDEN, LAYERS, HEADS, VOCAB, LENGTH = (
    (32, 64, 2, 2, 100, 16) if TINY else (2048, 5504, 12, 16, 32_000, 512)
)
micro_batch_size, gradient_accumulation_steps = (8, 1) if "whole-batch" in FIX else (1, 8)
lora_r, lora_alpha, lora_dropout = 16, 32, 0.05
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Int8Product(torch.autograd.Function):
    """x W^T with W kept as int8 and a scale a row; the weight itself is never kept."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(weight, scale)
        return x @ (weight.to(x.dtype) * scale).T

    @staticmethod
    def backward(ctx, grad):
        weight, scale = ctx.saved_tensors
        return grad @ (weight.to(grad.dtype) * scale), None, None


class QuantLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device=device)
        scale = torch.full((outputs, 1), 0.6 / 73 / math.sqrt(inputs), dtype=torch.bfloat16, device=device)
        if "dequantize-once" in FIX:
            weight = weight.to(torch.bfloat16) * scale
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.lora_A = nn.Linear(inputs, lora_r, bias=False, device=device, dtype=torch.bfloat16)
        self.lora_B = nn.Linear(lora_r, outputs, bias=False, device=device, dtype=torch.bfloat16)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(lora_dropout)

    def forward(self, x):
        if self.weight.dtype == torch.int8:
            y = Int8Product.apply(x, self.weight, self.scale)
        else:
            y = F.linear(x, self.weight)
        return y + self.lora_B(self.lora_A(self.dropout(x))) * (lora_alpha / lora_r)


def rotary(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(DIM, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.q, self.k, self.v, self.o = (QuantLinear(DIM, DIM) for _ in range(4))
        self.gate, self.up, self.down = (
            QuantLinear(DIM, HIDDEN),
            QuantLinear(DIM, HIDDEN),
            QuantLinear(HIDDEN, DIM),
        )

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotary(q, cos, sin), rotary(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, DIM))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM, device=device, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM, device=device, dtype=torch.bfloat16)
        self.head = nn.Linear(DIM, VOCAB, bias=False, device=device, dtype=torch.bfloat16)
        angles = torch.outer(
            torch.arange(LENGTH), 10000 ** (-torch.arange(0, DIM // HEADS, 2) / (DIM // HEADS))
        )
        self.register_buffer("cos", angles.cos().to(device, torch.bfloat16))
        self.register_buffer("sin", angles.sin().to(device, torch.bfloat16))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        logits = self.head(self.norm(x))[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


model = Model()
for name, p in model.named_parameters():
    p.requires_grad_("lora_" in name)
trainable = [p for p in model.parameters() if p.requires_grad]
total = sum(t.numel() for t in [*model.parameters(), *model.buffers()])
print(f"trainable params: {sum(p.numel() for p in trainable):,} || all params: {total:,}")
optimizer = torch.optim.AdamW(trainable, 2e-4, fused=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
instructions = torch.randint(0, VOCAB, (256, LENGTH))
instructions = (instructions**2 // VOCAB).pin_memory() if device.type == "cuda" else instructions**2 // VOCAB

times, row = [], 0
model.train()
for step in range(STEPS):
    start = time.perf_counter()
    step_loss = 0.0
    for _ in range(gradient_accumulation_steps):
        ids = instructions[row % 256 : row % 256 + micro_batch_size].to(device, non_blocking=True)
        row += micro_batch_size
        loss = model(ids, ids) / gradient_accumulation_steps
        loss.backward()
        step_loss += loss.detach()
    nn.utils.clip_grad_norm_(trainable, 0.3)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    step_loss = step_loss.item()
    times.append(time.perf_counter() - start)
    if step % 10 == 0:
        print({"loss": round(step_loss, 4), "learning_rate": scheduler.get_last_lr()[0], "step": step})
warm = times[STEPS // 4 :]
print({"train_loss": round(step_loss, 4), "seconds_per_step": round(sum(warm) / len(warm), 6)})
