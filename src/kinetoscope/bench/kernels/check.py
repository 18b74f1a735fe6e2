"""Whether a rebuilt kernel computes what its graph fragment says."""

from __future__ import annotations

import re

from kinetoscope.bench.kernels.replica import Replica
from kinetoscope.bench.kernels.subjects import Subject, arguments
from kinetoscope.bench.reference import agreement
from kinetoscope.bench.reference.agreement import Agreement
from kinetoscope.bench.torch_names import Tensor


def check(subject: Subject, built: Replica, device: str) -> Agreement:
    """Launch a kernel once, on its first set of buffers, and compare its outputs with its graph fragment."""
    import torch

    def made() -> list[Tensor]:
        tensors = arguments(subject, device)
        if "atomic_add" in subject.kernel.source:  # adds to what an earlier kernel set to zero
            for name, tensor in zip(subject.facts.parameters, tensors, strict=False):
                if name.startswith("out_ptr"):
                    tensor.zero_()
        return tensors

    try:
        before, after = made(), made()
        built.bind(after)()
        return agreement.check(
            subject.kernel.comment, subject.facts.parameters, _written(subject), before, after, device
        )
    except torch.OutOfMemoryError:
        return agreement.not_checked("the reference in float64 needs more memory than the device has free")


def _written(subject: Subject) -> list[str]:
    """The parameters that a kernel writes. Triton may only read what it could have updated in place."""
    kernel, facts = subject.kernel, subject.facts
    named = [p for p in facts.parameters if "out_ptr" in p or p in facts.mutated]
    if kernel.kind == "cpp":
        return named
    return [p for p in named if re.search(rf"\b(store|atomic_\w+)\({p}\b", kernel.source)]
