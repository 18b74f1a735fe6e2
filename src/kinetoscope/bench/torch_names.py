"""Every private PyTorch name that bench depends on, and what it was checked on.

Checked: PyTorch 2.9.1, 2.11.0 and 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def device_activity(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """``(name, start_ns, end_ns)`` of each kernel, copy and memset that a finished ``torch.profiler.profile`` saw."""
    from torch._C._autograd import DeviceType

    for event in profiler.profiler.kineto_results.events():
        # Ranges that the user marked appear on the device's lanes too, but are not work.
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation():
            yield event.name(), event.start_ns(), event.end_ns()
