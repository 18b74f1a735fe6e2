"""How many blocks fit on a multiprocessor, against the CUDA occupancy calculator's numbers for compute
capability 9."""

from __future__ import annotations

import polars as pl
import pytest

from kinetoscope.analysis.kernels.occupancy import fitted
from kinetoscope.trace.model import DeviceProperties

H200 = DeviceProperties(0, "NVIDIA H200", multiprocessors=132)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "resident", "occupancy"),
    [
        (256, 32, 0, 8, 1.0),  # threads
        (256, 255, 0, 1, 0.125),  # registers: 8 warps of 8192 (255 rounds up to 256) of 65536
        (128, 32, 100 * 1024, 2, 0.125),  # shared memory: 101 KiB each of 228
        (32, 16, 0, 32, 0.5),  # blocks
        (32, 16, None, 32, 0.5),
    ],
)
def test_blocks_are_held_as_far_as_each_resource_goes(
    threads: int, registers: int, shared: int | None, resident: int, occupancy: float
) -> None:
    launches = pl.DataFrame(
        {
            "grid": ["[10, 2, 3]"],
            "block": [f"[{threads}, 1, 1]"],
            "registers": [registers],
            "shared_memory_bytes": pl.Series([shared], dtype=pl.Int64),
        }
    )
    (row,) = fitted(launches, H200).iter_rows(named=True)
    assert (row["blocks"], row["threads"]) == (60, threads)
    assert (row["resident"], row["occupancy"]) == (resident, occupancy)


def test_a_device_has_limits_of_its_own() -> None:
    turing = DeviceProperties(0, "T4", properties={"maxThreadsPerMultiprocessor": 1024})
    launches = pl.DataFrame(
        {"grid": ["[1, 1, 1]"], "block": ["[256, 1, 1]"], "registers": [32], "shared_memory_bytes": [0]}
    )
    assert fitted(launches, turing)["resident"].to_list() == [4]
