"""What a device can do at most, looked up by the name that torch reports for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")

# A slice of a device (MIG, vGPU profiles) has a part of the rates, and its name does not say which part.
_PARTIAL = re.compile(r"\bMIG\b|\bGRID\b|-\d+[QC]\b", re.IGNORECASE)


@dataclass(frozen=True)
class DeviceSpec:
    """One row of the device table (``kinetoscope.hardware.table``).

    Args:
        name: the product.
        matches: regular expression on the reported name, without regard to case.
        peaks: dense FLOP/s (OP/s for int8) by dtype: the fastest unit that PyTorch's matmuls reach,
            accumulating in fp32. A dtype without an entry has no unit of its own.
        bandwidth: bytes/s of device memory.
        memory: bytes of device memory as sold (10^9 bytes a gigabyte).
        multiprocessors: SMs or compute units.
        source: the datasheet or white paper that the rates are from.
    """

    name: str
    matches: str
    peaks: Mapping[str, float]
    bandwidth: float
    memory: float
    multiprocessors: int
    source: str

    def peak(self, dtype: str) -> float | None:
        """Dense FLOP/s for one of ``DTYPES``, or null where the device has no unit for it."""
        return self.peaks.get(dtype)


@cache
def find(name: str, memory_bytes: int | None = None) -> DeviceSpec | None:
    """The device with this name (``torch.cuda.get_device_name()``, or a trace's ``deviceProperties``).

    Args:
        name: as reported; vendor prefixes, memory sizes and form factors may be there or not.
        memory_bytes: the device's total memory; decides between products of one name.

    Returns:
        None where the table has no such device, and for a slice of one (MIG).
    """
    from kinetoscope.hardware.table import DEVICES

    if _PARTIAL.search(name):
        return None
    rows = [row for row in DEVICES if re.search(row.matches, name, re.IGNORECASE)]
    if not rows:
        return None
    if memory_bytes is None:
        return rows[0]
    return min(rows, key=lambda row: abs(row.memory - memory_bytes))
