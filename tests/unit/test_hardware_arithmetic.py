"""The device table against what the chips are made of: operations a clock × multiprocessors × clock, and the
memory's width × data rate. Written apart from the table, from the architectures' white papers and the boards'
clocks."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kinetoscope.hardware.table import DEVICES

# Dense operations (a multiply-add is two) a clock and multiprocessor (or compute unit).
PASCAL = {"fp64": 64, "fp32": 128, "fp16": 256}
PASCAL_GRAPHICS = {"fp64": 8, "fp32": 256}
VOLTA = {"fp64": 64, "fp32": 128, "fp16": 1024}
TURING = {"fp64": 4, "fp32": 128, "fp16": 1024, "int8": 2048}
AMPERE = {"fp64": 128, "fp32": 128, "tf32": 1024, "fp16": 2048, "int8": 4096}
# Workstation and data-center boards of the graphics chips; GeForce's tensor cores accumulate in fp32 at half
# the rate.
GA102 = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "int8": 2048}
GA102_GEFORCE = {"fp64": 4, "fp32": 256, "tf32": 256, "fp16": 512, "int8": 2048}
GA102_AWS = {"fp64": 4, "fp32": 256, "tf32": 256, "fp16": 512, "int8": 1024}
ADA = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "fp8": 2048, "int8": 2048}
ADA_L40 = {"fp64": 4, "fp32": 256, "tf32": 256, "fp16": 512, "fp8": 1024, "int8": 1024}
ADA_GEFORCE = {"fp64": 4, "fp32": 256, "tf32": 256, "fp16": 512, "fp8": 1024, "int8": 2048}
HOPPER = {"fp64": 256, "fp32": 256, "tf32": 2048, "fp16": 4096, "fp8": 8192, "int8": 8192}
BLACKWELL = {
    "fp64": 128, "fp32": 256, "tf32": 4096, "fp16": 8192, "fp8": 16384, "int8": 16384, "fp4": 32768,
}  # fmt: skip
BLACKWELL_ULTRA = {**BLACKWELL, "fp64": 4, "int8": 512, "fp4": 49152}
GB202 = {**ADA, "fp4": 4096}
GB202_GEFORCE = {**ADA_GEFORCE, "fp4": 4096}
CDNA1 = {"fp64": 64, "fp32": 256, "fp16": 1024, "int8": 1024}
CDNA2 = {"fp64": 256, "fp32": 256, "fp16": 1024, "int8": 1024}
CDNA3 = {"fp64": 256, "fp32": 256, "tf32": 1024, "fp16": 2048, "fp8": 4096, "int8": 4096}
CDNA4 = {"fp64": 128, "fp32": 256, "fp16": 4096, "fp8": 8192, "int8": 8192, "fp4": 16384}


class Board(NamedTuple):
    """``ghz`` is the boost clock; ``matrix_ghz`` the one that matrix rates are stated for, where that is
    lower. ``bits`` and ``gbit_s``: the memory's width and what a wire of it carries."""

    chip: dict[str, int]
    units: int
    ghz: float
    bits: int
    gbit_s: float
    matrix_ghz: float | None = None


BOARDS = {
    "NVIDIA GB300": Board(BLACKWELL_ULTRA, 152, 2.07, 8192, 8.0, 2.01),
    "NVIDIA GB200": Board(BLACKWELL, 152, 2.06, 8192, 8.0, 2.01),
    "NVIDIA B300": Board(BLACKWELL_ULTRA, 148, 1.965, 8192, 8.0, 1.855),
    "NVIDIA B200": Board(BLACKWELL, 148, 1.965, 8192, 7.6, 1.855),
    "NVIDIA GH200 96GB": Board(HOPPER, 132, 1.98, 6144, 5.2, 1.83),
    "NVIDIA GH200 144GB": Board(HOPPER, 132, 1.98, 6144, 6.4, 1.83),
    "NVIDIA H200 NVL": Board(HOPPER, 132, 1.785, 6144, 6.25, 1.545),
    "NVIDIA H200": Board(HOPPER, 132, 1.98, 6144, 6.25, 1.83),
    "NVIDIA H100 NVL": Board(HOPPER, 132, 1.785, 6144, 5.13, 1.545),
    "NVIDIA H100 PCIe": Board(HOPPER, 114, 1.755, 5120, 3.19, 1.62),
    "NVIDIA H100 SXM": Board(HOPPER, 132, 1.98, 5120, 5.24, 1.83),
    "NVIDIA H800 SXM": Board({**HOPPER, "fp64": 4}, 132, 1.98, 5120, 5.24, 1.83),
    # A Hopper with its matrix units cut to a quarter and its fp64 to almost nothing.
    "NVIDIA H20": Board(
        {"fp64": 6, "fp32": 256, "tf32": 512, "fp16": 1024, "fp8": 2048, "int8": 2048},
        78,
        1.98,
        6144,
        5.2,
        1.83,
    ),
    "NVIDIA A100 PCIe 80GB": Board(AMPERE, 108, 1.41, 5120, 3.02),
    "NVIDIA A100 PCIe 40GB": Board(AMPERE, 108, 1.41, 5120, 2.43),
    "NVIDIA A100 SXM4 40GB": Board(AMPERE, 108, 1.41, 5120, 2.43),
    "NVIDIA A100 SXM4 80GB": Board(AMPERE, 108, 1.41, 5120, 3.19),
    "NVIDIA A30": Board(AMPERE, 56, 1.44, 3072, 2.43),
    "NVIDIA A10G": Board(GA102_AWS, 80, 1.71, 384, 12.5),
    "NVIDIA A10": Board(GA102, 72, 1.695, 384, 12.5),
    "NVIDIA A40": Board(GA102, 84, 1.74, 384, 14.5),
    "NVIDIA RTX A6000": Board(GA102, 84, 1.80, 384, 16),
    "NVIDIA L4": Board(ADA, 58, 2.04, 192, 12.5),
    "NVIDIA L40S": Board(ADA, 142, 2.52, 384, 18),
    "NVIDIA L40": Board(ADA_L40, 142, 2.49, 384, 18),
    "NVIDIA RTX 6000 Ada": Board(ADA, 142, 2.505, 384, 20),
    "NVIDIA GeForce RTX 3090": Board(GA102_GEFORCE, 82, 1.695, 384, 19.5),
    "NVIDIA GeForce RTX 4090": Board(ADA_GEFORCE, 128, 2.52, 384, 21),
    "NVIDIA GeForce RTX 5090": Board(GB202_GEFORCE, 170, 2.407, 512, 28),
    "NVIDIA RTX PRO 6000 Blackwell": Board(GB202, 188, 2.617, 512, 28),
    "NVIDIA V100S PCIe": Board(VOLTA, 80, 1.597, 4096, 2.21),
    "NVIDIA V100 PCIe": Board(VOLTA, 80, 1.38, 4096, 1.755),
    "NVIDIA V100 SXM2": Board(VOLTA, 80, 1.53, 4096, 1.755),
    "NVIDIA T4": Board(TURING, 40, 1.59, 256, 10),
    "NVIDIA P100 PCIe": Board(PASCAL, 56, 1.303, 4096, 1.43),
    "NVIDIA P100 SXM2": Board(PASCAL, 56, 1.48, 4096, 1.43),
    "NVIDIA P40": Board(PASCAL_GRAPHICS, 30, 1.531, 384, 7.2),
    "AMD Instinct MI100": Board(CDNA1, 120, 1.502, 4096, 2.4),
    "AMD Instinct MI210": Board(CDNA2, 104, 1.7, 4096, 3.2),
    "AMD Instinct MI250X (one die)": Board(CDNA2, 110, 1.7, 4096, 3.2),
    "AMD Instinct MI250 (one die)": Board(CDNA2, 104, 1.7, 4096, 3.2),
    "AMD Instinct MI300X": Board(CDNA3, 304, 2.1, 8192, 5.2),
    "AMD Instinct MI300A": Board(CDNA3, 228, 2.1, 8192, 5.2),
    "AMD Instinct MI325X": Board(CDNA3, 304, 2.1, 8192, 6.0),
    "AMD Instinct MI350X": Board(CDNA4, 256, 2.2, 8192, 8.0),
    "AMD Instinct MI355X": Board(CDNA4, 256, 2.4, 8192, 8.0),
}
NO_BF16 = (PASCAL, PASCAL_GRAPHICS, VOLTA, TURING)
# What the datasheets round to one digit, or state for another clock than the one that boards run at.
ROUGH = {
    ("NVIDIA GB300", "fp64"), ("NVIDIA B300", "fp64"), ("NVIDIA H800 SXM", "fp64"), ("NVIDIA H20", "fp64"),
    ("NVIDIA H20", "fp32"),
}  # fmt: skip


# What NVIDIA states of graphics cards, whose rows are reckoned from their clocks: TFLOPS in fp32 and, of the
# tensor cores, in fp16 with fp32 sums; the memory's width and data rate.
STATED = {
    "GeForce RTX 5080": (56.3, 112.6, 256, 30),
    "GeForce RTX 5070 Ti": (43.9, 87.9, 256, 28),
    "GeForce RTX 5070": (30.9, 61.7, 192, 28),
    "GeForce RTX 5060 Ti": (23.7, 47.4, 128, 28),
    "GeForce RTX 5060": (19.2, 38.4, 128, 28),
    "GeForce RTX 4080 SUPER": (52.2, 104.4, 256, 23),
    "GeForce RTX 4080": (48.7, 97.5, 256, 22.4),
    "GeForce RTX 4070 Ti SUPER": (44.1, 88.2, 256, 21),
    "GeForce RTX 4070 Ti": (40.1, 80.2, 192, 21),
    "GeForce RTX 4070 SUPER": (35.5, 71.0, 192, 21),
    "GeForce RTX 4070": (29.1, 58.3, 192, 21),
    "GeForce RTX 4060 Ti": (22.1, 44.1, 128, 18),
    "GeForce RTX 4060": (15.1, 30.2, 128, 17),
    "RTX 5000 Ada": (65.3, 261.1, 256, 18),
    "RTX 4500 Ada": (39.6, 158.5, 192, 18),
    "RTX 4000 Ada": (26.7, 106.9, 160, 18),
    "RTX 2000 Ada": (12.0, 48.0, 128, 16),
    "GeForce RTX 3090 Ti": (40.0, 80.0, 384, 21),
    "GeForce RTX 3080 Ti": (34.1, 68.2, 384, 19),
    "GeForce RTX 3080": (29.8, 59.5, 320, 19),
    "GeForce RTX 3070 Ti": (21.7, 43.5, 256, 19),
    "GeForce RTX 3070": (20.3, 40.6, 256, 14),
    "GeForce RTX 3060 Ti": (16.2, 32.4, 256, 14),
    "GeForce RTX 3060": (12.7, 25.5, 192, 15),
    "RTX A5000": (27.8, 111.1, 384, 16),
    "RTX A4500": (23.7, 94.6, 320, 16),
    "RTX A4000": (19.2, 76.7, 256, 14),
    "RTX A2000": (8.0, 31.9, 192, 12),
    "A16": (4.5, 17.9, 128, 12.5),
    "A2": (4.5, 18.0, 128, 12.5),
    "Jetson AGX Orin 64GB": (5.3, 42.5, 256, 6.4),
    "Jetson AGX Orin 32GB": (3.3, 27.0, 256, 6.4),
    "Jetson Orin NX 16GB": (1.9, 15.0, 128, 6.4),
    "Jetson Orin Nano 8GB": (1.28, 10.2, 128, 4.25),
    "GeForce RTX 2080 Ti": (13.4, 53.8, 352, 14),
    "GeForce RTX 2080 SUPER": (11.15, 44.6, 256, 15.5),
    "GeForce RTX 2080": (10.1, 40.3, 256, 14),
    "GeForce RTX 2070 SUPER": (9.1, 36.2, 256, 14),
    "GeForce RTX 2070": (7.5, 29.9, 256, 14),
    "GeForce RTX 2060 SUPER": (7.2, 28.7, 256, 14),
    "GeForce RTX 2060": (6.5, 25.8, 192, 14),
    "TITAN RTX": (16.3, 130.5, 384, 14),
    "Quadro RTX 8000": (16.3, 130.5, 384, 14),
    "Quadro RTX 6000": (16.3, 130.5, 384, 14),
    "Quadro RTX 5000": (11.2, 89.2, 256, 14),
    "TITAN Xp": (12.1, None, 384, 11.4),
    "GeForce GTX 1080 Ti": (11.3, None, 352, 11),
    "GeForce GTX 1080": (8.9, None, 256, 10),
}
RECKONED = [row for row in DEVICES if row.name.removeprefix("NVIDIA ") in STATED]
WRITTEN = [row for row in DEVICES if row not in RECKONED]


def test_every_row_of_the_table_is_recalculated() -> None:
    assert len(RECKONED) == len(STATED)
    assert sorted(BOARDS) == sorted(row.name for row in WRITTEN)


@pytest.mark.parametrize("row", RECKONED, ids=lambda row: row.name)
def test_graphics_cards_have_the_rates_that_nvidia_states(row) -> None:
    fp32, fp16, bits, gbit_s = STATED[row.name.removeprefix("NVIDIA ")]
    assert row.peaks["fp32"] == pytest.approx(fp32 * 1e12, rel=0.02)
    if fp16 is None:
        assert "fp16" not in row.peaks
    else:
        assert row.peaks["fp16"] == pytest.approx(fp16 * 1e12, rel=0.02)
    assert row.bandwidth == pytest.approx(bits * gbit_s / 8 * 1e9, rel=0.01)


@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.name)
def test_rates_are_what_the_chip_can_do(row) -> None:
    board = BOARDS[row.name]
    assert row.multiprocessors == board.units
    # A row says every rate that its chip has, and no other.
    assert set(row.peaks) == set(board.chip) | ({"bf16"} if board.chip not in NO_BF16 else set())
    for dtype, operations in board.chip.items():
        vector = (operations <= 256 and dtype in ("fp32", "fp64")) or (dtype == "int8" and operations == 512)
        ghz = board.ghz if vector else board.matrix_ghz or board.ghz
        tolerance = 0.15 if (row.name, dtype) in ROUGH else 0.03
        assert row.peaks[dtype] == pytest.approx(operations * board.units * ghz * 1e9, rel=tolerance), dtype


@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.name)
def test_bandwidth_is_the_memorys_width_and_rate(row) -> None:
    board = BOARDS[row.name]
    assert row.bandwidth == pytest.approx(board.bits * board.gbit_s / 8 * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("NVIDIA H100 SXM", "NVIDIA H100"),
        ("NVIDIA A100 SXM4 80GB", "NVIDIA A100"),
        ("AMD Instinct MI300X", "AMD MI300X"),
        ("AMD Instinct MI300A", "AMD MI300A"),
        ("AMD Instinct MI350X", "AMD MI350X"),
        ("AMD Instinct MI210", "AMD MI210X"),
    ],
)
def test_rates_are_those_that_inductor_read_off_the_same_datasheets(ours: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    device_info = pytest.importorskip("torch._inductor.analysis.device_info")
    known = device_info.lookup_device_info(theirs)
    if known is None or not hasattr(known, "tops_sparsity_factor"):
        pytest.skip("another torch than the table was compared with")
    (row,) = [row for row in DEVICES if row.name == ours]
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.int8, "int8")):
        assert row.peaks[name] == pytest.approx(
            known.tops[dtype] / known.tops_sparsity_factor * 1e12, rel=0.002
        )
    # Inductor halves the rates without sparsity along with those that have it.
    assert row.peaks["fp64"] == pytest.approx(known.tops[torch.float64] * 1e12, rel=0.002)
    assert row.bandwidth == pytest.approx(known.dram_bw_gbs * 1e9, rel=0.03)
