"""Pretrain a small Llama with accelerate: packed sequences, bfloat16, fused optimizer, a schedule."""

import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

FIX = os.environ.get("FIX", "").split(",")
TINY = "TINY" in os.environ
STEPS = int(os.environ.get("STEPS", 4 if TINY else 20))
BATCH, LENGTH, VOCAB, WIDTH, LAYERS, HEADS = (2, 16, 60, 16, 2, 2) if TINY else (16, 1024, 32000, 768, 12, 12)


def packed(count):
    """Texts that follow simple habits, end to end, cut into sequences."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(VOCAB, (count, 1), generator=generator)
    steps = torch.randint(1, 4, (count, LENGTH), generator=generator).cumsum(1)
    return TensorDataset((starts + steps) % VOCAB)


def main():
    cuda = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    set_seed(0)
    torch.set_float32_matmul_precision("high")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    loader = DataLoader(packed(32 * BATCH), BATCH, shuffle=True, drop_last=True, pin_memory=cuda)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=cuda)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 10_000)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    step, times, shown = 0, [], 0.0
    while step < STEPS:
        began = time.perf_counter()
        for (ids,) in loader:
            if step == STEPS:
                break
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            if "no-clipping" not in FIX:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if "loss-rarely" not in FIX or step % 10 == 0 or step == STEPS - 1:
                shown = accelerator.gather(loss.detach()).mean().item()
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            if step % 10 == 0:
                accelerator.print(f"step {step}: loss {shown:.4f}, lr {scheduler.get_last_lr()[0]:.2e}")
            step += 1
    kept = times[min(STEPS // 2, 5) :]
    accelerator.print(f"loss {shown:.4f}; {1e3 * sum(kept) / len(kept):.3f} ms per step")


if __name__ == "__main__":
    main()
