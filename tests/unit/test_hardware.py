"""The device table: every name that torch reports finds its row, and no row contradicts itself."""

from __future__ import annotations

import re

import pytest

from kinetoscope.hardware import DTYPES, DeviceSpec, find
from kinetoscope.hardware.links import link
from kinetoscope.hardware.table import DEVICES

GB = 10**9


@pytest.mark.parametrize(
    ("reported", "product"),
    [
        ("NVIDIA B200", "NVIDIA B200"),
        ("NVIDIA B300 SXM6 AC", "NVIDIA B300"),
        ("NVIDIA GB200", "NVIDIA GB200"),
        ("NVIDIA GB300", "NVIDIA GB300"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 96GB"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("h100", "NVIDIA H100 SXM"),
        ("NVIDIA H20", "NVIDIA H20"),
        ("NVIDIA H800", "NVIDIA H800 SXM"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM4 40GB"),
        ("A100-SXM-80GB", "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80GB"),
        ("NVIDIA A800-SXM4-80GB", "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA A30", "NVIDIA A30"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA A10G", "NVIDIA A10G"),
        ("NVIDIA A40", "NVIDIA A40"),
        ("NVIDIA RTX A6000", "NVIDIA RTX A6000"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA L40", "NVIDIA L40"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2"),
        ("Tesla V100-PCIE-16GB", "NVIDIA V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "NVIDIA V100S PCIe"),
        ("Tesla V100-DGXS-32GB", "NVIDIA V100 SXM2"),
        ("Tesla T4", "NVIDIA T4"),
        ("Tesla P100-PCIE-16GB", "NVIDIA P100 PCIe"),
        ("Tesla P100-SXM2-16GB", "NVIDIA P100 SXM2"),
        ("Tesla P40", "NVIDIA P40"),
        ("NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("GeForce RTX 2080", "NVIDIA GeForce RTX 2080"),
        ("NVIDIA GeForce RTX 2070 SUPER", "NVIDIA GeForce RTX 2070 SUPER"),
        ("GeForce GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti"),
        ("NVIDIA TITAN RTX", "NVIDIA TITAN RTX"),
        ("TITAN Xp", "NVIDIA TITAN Xp"),
        ("Quadro RTX 6000", "NVIDIA Quadro RTX 6000"),
        ("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060"),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 5070 Ti", "NVIDIA GeForce RTX 5070 Ti"),
        ("NVIDIA RTX A5000", "NVIDIA RTX A5000"),
        ("NVIDIA RTX 4000 Ada Generation", "NVIDIA RTX 4000 Ada"),
        ("NVIDIA A16", "NVIDIA A16"),
        ("Orin", "NVIDIA Jetson AGX Orin 64GB"),
        ("AMD Instinct MI100", "AMD Instinct MI100"),
        ("AMD Instinct MI210", "AMD Instinct MI210"),
        ("AMD Instinct MI250X", "AMD Instinct MI250X (one die)"),
        ("AMD Instinct MI250", "AMD Instinct MI250 (one die)"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "AMD Instinct MI250 (one die)"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X"),
        ("AMD Instinct MI325X", "AMD Instinct MI325X"),
        ("AMD Instinct MI350X", "AMD Instinct MI350X"),
        ("AMD Instinct MI355X", "AMD Instinct MI355X"),
    ],
)
def test_devices_are_found_by_the_names_that_drivers_report(reported: str, product: str) -> None:
    found = find(reported)
    assert found is not None
    assert found.name == product


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a seventh of the device
        "NVIDIA A10-24Q",  # a virtual one
        "GRID A100-10C",
        "AMD Radeon Graphics",  # says nothing
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "GeForce RTX 2080 with Max-Q Design",
        "NVIDIA RTX A2000 8GB Laptop GPU",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "Quadro RTX 4000",
        "Intel(R) Data Center GPU Max 1550",
        "",
    ],
)
def test_unknown_devices_are_not_found_in_the_table(reported: str) -> None:
    assert find(reported) is None


@pytest.mark.parametrize(
    ("reported", "memory", "product"),
    [
        ("NVIDIA A100-PG509-200", 42_297_524_224, "NVIDIA A100 SXM4 40GB"),
        ("NVIDIA A100-PG509-200", 85_049_868_288, "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA GH200 480GB", 101_000_000_000, "NVIDIA GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", 150_000_000_000, "NVIDIA GH200 144GB"),
        ("NVIDIA H200", 150_109_880_320, "NVIDIA H200"),
        ("Orin", 15_700_000_000, "NVIDIA Jetson Orin NX 16GB"),
    ],
)
def test_memory_decides_between_products_of_one_name(reported: str, memory: int, product: str) -> None:
    found = find(reported, memory)
    assert found is not None
    assert found.name == product


@pytest.mark.parametrize("row", DEVICES, ids=lambda row: row.name)
def test_rows_of_the_table_are_plausible(row: DeviceSpec) -> None:
    assert re.compile(row.matches)
    assert row.source.startswith(("NVIDIA", "AMD"))
    assert set(row.peaks) <= set(DTYPES)
    # Halving a number's width never slows a device down.
    wide_to_narrow = [row.peaks[d] for d in ("fp32", "tf32", "fp16", "fp8", "fp4") if d in row.peaks]
    assert wide_to_narrow == sorted(wide_to_narrow)
    sixteen_bit = row.peaks.get("fp16", row.peaks["fp32"])
    if row.name != "AMD Instinct MI100":  # the one device on which bf16 is slower
        assert row.peaks.get("bf16", sixteen_bit) == sixteen_bit
    assert 0.06e12 <= row.bandwidth <= 8e12
    assert 6 * GB <= row.memory <= 288 * GB
    # Dense, not sparse: on every one of these a 16-bit product takes 20 to 600 operations per byte of
    # bandwidth.
    assert 20 <= sixteen_bit / row.bandwidth <= 600


def test_the_dense_rates_of_the_device_that_the_recordings_were_made_on() -> None:
    h200 = find("NVIDIA H200")
    assert h200 is not None
    # 132 SMs × 4 tensor cores × 512 FMA a cycle × 2 × 1.83 GHz (the boost clock of the white paper).
    assert h200.peaks["bf16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=0.001)
    assert h200.peak("fp4") is None
    # 132 SMs × 128 FP32 lanes × 2 × 1.98 GHz.
    assert h200.peaks["fp32"] == pytest.approx(132 * 128 * 2 * 1.98e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H200", 450),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA A100-SXM4-80GB", 300),
        ("Tesla V100-SXM2-16GB", 150),
        ("NVIDIA B200", 900),
        ("NVIDIA L40S", 31.5),
        ("NVIDIA H200 NVL", None),  # with a bridge or without
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
    ],
)
def test_what_links_move_in_one_direction(name: str, gigabytes: float | None) -> None:
    """NVLink's bandwidth as datasheets have it is that of both."""
    assert link(name) == (None if gigabytes is None else gigabytes * 1e9)
