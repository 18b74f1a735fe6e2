"""Find promoters in DNA with a BART-like encoder and a little accelerator: autocast, scaler, compile."""

import contextlib
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 6 if TINY else 120))
DIM, DEPTH, HEADS, FFN, LENGTH, BATCH = (16, 2, 2, 32, 20, 4) if TINY else (384, 4, 6, 1536, 128, 24)
VOCAB, CLASSES, WARMUP = 4**3 + 2, 2, 10  # words of three bases
torch.manual_seed(42)


class Accelerator:
    """Device, precision, compilation and gradients in one place, so that the loop stays as it is."""

    def __init__(self, mixed_precision="no", dynamo_backend="no", log_with=print):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "no": None}[mixed_precision]
        if self.device.type == "cpu" and mixed_precision == "fp16":
            self.dtype = None
        self.dynamo_backend, self.print = dynamo_backend, log_with
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.models = []

    def prepare(self, *objects):
        return tuple(self.prepare_one(one) for one in objects)

    def prepare_one(self, one):
        if isinstance(one, nn.Module):
            one = one.to(self.device)
            self.models.append(one)
            if self.dynamo_backend != "no":
                one = torch.compile(one, backend=self.dynamo_backend)
            return one
        if isinstance(one, torch.optim.Optimizer):
            return AcceleratedOptimizer(one, self.scaler)
        return DeviceLoader(one, self.device)

    @contextlib.contextmanager
    def autocast(self):
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            yield

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip_grad_norm_(self, optimizer, max_norm):
        self.scaler.unscale_(optimizer.optimizer)
        return nn.utils.clip_grad_norm_([p for model in self.models for p in model.parameters()], max_norm)


class AcceleratedOptimizer:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def zero_grad(self):
        self.optimizer.zero_grad()


class DeviceLoader:
    def __init__(self, batches, device):
        self.batches, self.device = batches, device

    def __iter__(self):
        for batch in self.batches:
            yield {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.attn_norm, self.final_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, FFN), nn.Linear(FFN, DIM)

    def forward(self, hidden_states):
        x = hidden_states
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attn = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        hidden_states = self.attn_norm(hidden_states + F.dropout(self.out(attn), 0.1, self.training))
        h = self.fc2(F.gelu(self.fc1(hidden_states)))
        hidden_states = self.final_norm(hidden_states + F.dropout(h, 0.1, self.training))
        clamp_value = torch.finfo(torch.float16).max - 1000
        if "clamp-always" in FIX or torch.isinf(hidden_states).any() or torch.isnan(hidden_states).any():
            hidden_states = torch.clamp(hidden_states, min=-clamp_value, max=clamp_value)
        return hidden_states


class PromoterClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.norm, self.layers = nn.LayerNorm(DIM), nn.ModuleList(EncoderLayer() for _ in range(DEPTH))
        self.dense, self.classifier = nn.Linear(DIM, DIM), nn.Linear(DIM, CLASSES)

    def forward(self, input_ids):
        hidden_states = self.norm(self.tokens(input_ids) + self.positions.weight)
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states)
        return self.classifier(torch.tanh(self.dense(hidden_states[:, 0])))


def dna():
    """Batches of sequences; a promoter has the same word twice at the beginning."""
    while True:
        input_ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
        labels = torch.randint(0, CLASSES, (BATCH,))
        input_ids[:, 1] = torch.where(labels == 1, input_ids[:, 2], input_ids[:, 1])
        yield {"input_ids": input_ids, "labels": labels}


accelerator = Accelerator(
    mixed_precision="fp16", dynamo_backend="inductor" if torch.cuda.is_available() else "aot_eager"
)
net = PromoterClassifier()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01)
model, optimizer, train_dataloader = accelerator.prepare(net, optimizer, dna())
model.train()
times, running = [], 0.0
for step, batch in enumerate(train_dataloader, 1):
    started = time.perf_counter()
    with accelerator.autocast():
        logits = model(batch["input_ids"])
        loss = F.cross_entropy(logits.float(), batch["labels"])
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(optimizer, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    running += loss.detach().item()
    times.append(time.perf_counter() - started)
    if step % 25 == 0:
        accelerator.print(f"step {step}: loss {running / step:.4f}")
    if step == STEPS:
        break
kept = times[min(WARMUP, STEPS // 2) :]
accelerator.print(f"loss {running / STEPS:.4f}; train_samples_per_second {BATCH * len(kept) / sum(kept):.2f}")
accelerator.print(f"train_steps_per_second {len(kept) / sum(kept):.4f}")
