"""A second set of programs for ``pairs.py``, of libraries: none of them was used to choose a constant.

As people write them, with what they do wrong unless it is among the ``fixes``. On a CPU they run with tiny
sizes, which is to try that they run at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from held_out_own import (
    DEVICE,
    HOST_BOUND,
    Step,
    adamw,
    average,
    precision,
    size,
)

FIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt2": {
        "autocast": ("no-tensor-cores",),
        "sdpa": ("unfused-attention",),
        "fused": ("optimizer-not-fused",),
        "clip-foreach": ("many-tiny-kernels", "overhead-bound"),
        "no-item": ("sync-in-step",),
    },
    "llama": {
        "fused": ("optimizer-not-fused",),
        "ema-foreach": ("many-tiny-kernels", "overhead-bound"),
        "norms-once": ("sync-in-step",),
    },
    "vit_scores": {
        "half": ("no-tensor-cores",),
        "pinned": ("pageable-copy",),
        "on-device": ("host-op-stall", "unexplained-idle", "python-overhead"),
    },
    "mixtral": {"grouped": ("sync-in-step", *HOST_BOUND), "fused": ("optimizer-not-fused",)},
    "convnext": {
        "channels_last": ("layout-conversion", "copies-inside-ops"),
        "ema-foreach": ("many-tiny-kernels", "overhead-bound"),
        "fused": ("optimizer-not-fused",),
    },
    "efficientnet": {
        "tf32": ("no-tensor-cores",),
        "channels_last": ("layout-conversion",),
        "pinned": ("pageable-copy",),
        "fused": ("optimizer-not-fused",),
    },
    "segmentation": {
        "confusion-on-device": ("host-op-stall", "sync-in-step", "pageable-copy"),
        "tf32": ("no-tensor-cores",),
        "fused": ("optimizer-not-fused",),
    },
    "retinanet": {
        "tf32": ("no-tensor-cores",),
        "fused": ("optimizer-not-fused",),
        "no-item": ("sync-in-step",),
    },
    "gcn": {"indices": ("sync-in-step",), "cached": HOST_BOUND, "fused": ("optimizer-not-fused",)},
    "lora": {"adapters-bf16": ("dtype-casts",), "fused": ("optimizer-not-fused",), "no-dropout": HOST_BOUND},
}


def gpt2(fixes: set[str]) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=size(8, 2), n_embd=size(768, 32), n_head=size(12, 2), vocab_size=16000)
    config._attn_implementation = "sdpa" if "sdpa" in fixes else "eager"
    model = GPT2LMHeadModel(config).to(DEVICE).train()
    optimizer = adamw(model, fixes)
    text = torch.randint(0, 16000, (size(8, 2), size(512, 16))).tolist()
    total = torch.zeros((), device=DEVICE)

    def step() -> None:
        ids = torch.tensor(text, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled="autocast" in fixes):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach="clip-foreach" in fixes)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        total.add_(loss.detach()) if "no-item" in fixes else loss.item()

    return step


def llama(fixes: set[str]) -> Step:
    import copy

    from transformers import LlamaConfig, LlamaForCausalLM

    width = size(1024, 32)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=size(8, 2),
        num_attention_heads=size(16, 2),
        num_key_value_heads=size(4, 2),
        vocab_size=16000,
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).train()
    kept = copy.deepcopy(model)
    optimizer = adamw(model, fixes)
    ids = torch.randint(0, 16000, (size(4, 1), size(1024, 16)), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norms = {name: p.grad.norm() for name, p in model.named_parameters() if p.grad is not None}
        if "norms-once" in fixes:
            torch.stack(list(norms.values())).tolist()
        else:
            _ = {name: norm.item() for name, norm in norms.items()}
        optimizer.step()
        average(kept, model, "ema-foreach" in fixes)

    return step


def vit_scores(fixes: set[str]) -> Step:
    """Images of bytes, normalized on the host, scored one batch after the other."""
    from transformers import ViTConfig, ViTForImageClassification

    precision(set())
    layers = size(12, 1)
    model = ViTForImageClassification(ViTConfig(num_hidden_layers=layers, num_labels=1000)).to(DEVICE).eval()
    half = "half" in fixes
    if half:
        model = model.to(torch.bfloat16)
    images = torch.randint(0, 256, (size(32, 1), 3, 224, 224), dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.2, 0.2]).view(3, 1, 1)
    on_device, pinned = "on-device" in fixes, "pinned" in fixes
    if on_device:
        mean, std = mean.to(DEVICE), std.to(DEVICE)
    ready = torch.empty(images.shape, pin_memory=DEVICE == "cuda") if pinned else None

    @torch.no_grad()
    def step() -> None:
        x = images.to(DEVICE) if on_device else images
        x = (x.float() / 255 - mean) / std
        if ready is not None and not on_device:
            x = ready.copy_(x)
        x = x.to(DEVICE, torch.bfloat16 if half else torch.float32, non_blocking=pinned)
        model(x).logits.softmax(-1).float().cpu().numpy()

    return step


def mixtral(fixes: set[str]) -> Step:
    from transformers import MixtralConfig, MixtralForCausalLM

    width = size(1024, 32)
    config = MixtralConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=size(4, 1),
        num_attention_heads=size(16, 2),
        num_key_value_heads=size(4, 2),
        num_local_experts=8,
        vocab_size=8000,
    )
    config._experts_implementation = "grouped_mm" if "grouped" in fixes else "eager"
    model = MixtralForCausalLM(config).to(DEVICE, torch.bfloat16).train()
    optimizer = adamw(model, fixes)
    ids = torch.randint(0, 8000, (size(4, 1), size(512, 16)), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def convnext(fixes: set[str]) -> Step:
    import copy

    import timm

    channels = torch.channels_last if "channels_last" in fixes else torch.contiguous_format
    model = timm.create_model("convnext_tiny" if DEVICE == "cuda" else "convnext_atto").to(DEVICE)
    model = model.to(memory_format=channels)
    kept = copy.deepcopy(model)
    optimizer = adamw(model, fixes)
    pixels = size(224, 32)
    images = torch.randn(size(32, 2), 3, pixels, pixels, device=DEVICE).to(memory_format=channels)
    labels = torch.randint(0, 1000, (len(images),), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average(kept, model, "ema-foreach" in fixes)

    return step


def efficientnet(fixes: set[str]) -> Step:
    import timm

    precision(fixes)
    channels = torch.channels_last if "channels_last" in fixes else torch.contiguous_format
    model = timm.create_model("efficientnet_b0").to(DEVICE).to(memory_format=channels).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, fused="fused" in fixes)
    pixels, pinned = size(224, 32), "pinned" in fixes
    images, labels = torch.randn(size(64, 2), 3, pixels, pixels), torch.randint(0, 1000, (size(64, 2),))
    if pinned and DEVICE == "cuda":
        images, labels = images.pin_memory(), labels.pin_memory()

    def step() -> None:
        x = images.to(DEVICE, non_blocking=pinned).to(memory_format=channels)
        y = labels.to(DEVICE, non_blocking=pinned)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def segmentation(fixes: set[str]) -> Step:
    """A head of torchvision's, and its confusion matrix of every batch on the host."""
    import torchvision

    precision(fixes)
    model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21)
    model = model.to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused="fused" in fixes)
    pixels = size(256, 64)
    images = torch.randn(size(8, 2), 3, pixels, pixels, device=DEVICE)
    labels = torch.randint(0, 21, (len(images), pixels, pixels), device=DEVICE)
    counts = torch.zeros(
        21 * 21, dtype=torch.long, device=DEVICE if "confusion-on-device" in fixes else "cpu"
    )

    def step() -> None:
        scores = model(images)["out"]
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found, wanted = scores.argmax(1).to(counts.device), labels.to(counts.device)
        counts.add_(torch.bincount((wanted * 21 + found).flatten(), minlength=441))

    return step


def retinanet(fixes: set[str]) -> Step:
    import torchvision

    precision(fixes)
    pixels = size(320, 64)
    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=pixels, max_size=pixels
    )
    model = model.to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, fused="fused" in fixes)
    images = [torch.rand(3, pixels, pixels, device=DEVICE) for _ in range(size(4, 1))]
    corner = torch.rand(8, 2, device=DEVICE) * pixels / 2
    boxes = torch.cat([corner, corner + pixels / 4], 1)
    targets = [{"boxes": boxes, "labels": torch.randint(1, 90, (8,), device=DEVICE)} for _ in images]

    def step() -> None:
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "no-item" not in fixes:
            _ = {name: value.item() for name, value in losses.items()}

    return step


def gcn(fixes: set[str]) -> Step:
    from torch_geometric.nn import GCNConv

    nodes, width = size(20_000, 200), size(256, 16)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cached = "cached" in fixes
            self.layers = nn.ModuleList(GCNConv(width, width, cached=cached) for _ in range(4))

        def forward(self, x: Any, edges: Any) -> Any:
            for layer in self.layers:
                x = F.dropout(F.relu(layer(x, edges)), 0.5, self.training)
            return x

    model = Net().to(DEVICE)
    optimizer = adamw(model, fixes)
    x, y = torch.randn(nodes, width, device=DEVICE), torch.randint(0, width, (nodes,), device=DEVICE)
    edges = torch.randint(0, nodes, (2, 10 * nodes), device=DEVICE)
    mask = torch.rand(nodes, device=DEVICE) < 0.5
    train, rest = mask, ~mask
    if "indices" in fixes:
        train, rest = mask.nonzero().flatten(), (~mask).nonzero().flatten()

    def step() -> None:
        optimizer.zero_grad()
        scores = model(x, edges)
        F.cross_entropy(scores[train], y[train]).backward()
        optimizer.step()
        (scores[rest].argmax(-1) == y[rest]).float().mean()

    return step


def lora(fixes: set[str]) -> Step:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    width = size(1024, 32)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=size(8, 2),
        num_attention_heads=size(16, 2),
        vocab_size=16000,
    )
    adapters = LoraConfig(
        r=16,
        lora_dropout=0.0 if "no-dropout" in fixes else 0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
    )
    model: Any = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16)
    model = get_peft_model(model, adapters, autocast_adapter_dtype="adapters-bf16" not in fixes).train()
    optimizer = adamw(model, fixes)
    ids = torch.randint(0, 16000, (size(4, 1), size(512, 16)), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step
