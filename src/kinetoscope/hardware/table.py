"""The device table: peak rates by the name that torch reports. To add a device, add a row.

Every row names the source of its rates. Rates are dense: where a datasheet prints the rate with structured
sparsity only, half of it stands here. Graphics cards and small devices of the same chips get their rates from
the operations of the chip per clock, the multiprocessors and the boost clock, as the architectures' white
papers compute them; cards of partners are up to a tenth faster. Tests compare every row with what its
multiprocessors can do in a clock, and with its memory's width and data rate
(tests/unit/test_hardware_arithmetic.py): a factor of two cannot hide. Where two rows fit a name, the first is
taken, unless the device's memory decides otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from msgspec import Struct

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")

# A slice of a device (MIG, vGPU profiles) has a part of the rates, and its name does not say which part.
_PARTIAL = re.compile(r"\bMIG\b|\bGRID\b|-\d+[QC]\b", re.IGNORECASE)


class DeviceSpec(Struct, frozen=True):
    name: str  # the product
    matches: str  # regular expression on the reported name, without regard to case
    # dense FLOP/s (OP/s for int8) by dtype: the fastest unit that PyTorch's matmuls reach, accumulating in
    # fp32. A dtype without an entry has no unit of its own
    peaks: Mapping[str, float]
    bandwidth: float  # bytes/s of device memory
    memory: float  # bytes of device memory as sold (10^9 bytes a gigabyte)
    multiprocessors: int  # SMs or compute units
    source: str  # the datasheet or white paper that the rates are from

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
    if _PARTIAL.search(name):
        return None
    known = name.lower()
    rows = [row for row in DEVICES if _word(row) in known and re.search(row.matches, name, re.IGNORECASE)]
    if not rows:
        return None
    if memory_bytes is None:
        return rows[0]
    return min(rows, key=lambda row: abs(row.memory - memory_bytes))


def _word(row: DeviceSpec) -> str:
    """The beginning of a name that fits the row's pattern, if it begins with one: patterns are many, and
    compiling all of them takes 20 ms."""
    found = re.match(r"\\b([a-z0-9]*)(?![a-z0-9?*{])", row.matches.lower())
    return found[1] if found else ""


# Dense operations (a multiply-add is two) a clock and multiprocessor, accumulating in fp32 as PyTorch has it:
# at half rate on GeForce cards, at full rate on Titans and workstation cards.
_PASCAL = {"fp64": 8, "fp32": 256}  # fp16 has a 64th of the fp32 rate there: no unit worth its name
_TURING = {"fp64": 4, "fp32": 128, "fp16": 1024, "int8": 2048}
_TURING_GEFORCE = _TURING | {"fp16": 512}
_AMPERE_CHIP = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048}
_AMPERE_GEFORCE = _AMPERE_CHIP | {"tf32": 256, "fp16": 512, "bf16": 512}
_ORIN = {"fp32": 256, "fp16": 2048, "bf16": 2048, "int8": 4096}
_ADA = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048}
_ADA_GEFORCE = _ADA | {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024}
_BLACKWELL_GEFORCE = _ADA_GEFORCE | {"fp4": 4096}

_PASCAL_PAPER = "NVIDIA GeForce GTX 1080 white paper and product pages"
_TURING_PAPER = "NVIDIA Turing GPU architecture white paper (2018) and product pages"
_AMPERE_PAPER = "NVIDIA Ampere GA102 GPU architecture white paper (2020) and product pages"
_ADA_PAPER = "NVIDIA Ada GPU architecture white paper (2022) and product pages"
_BLACKWELL_PAPER = "NVIDIA RTX Blackwell GPU architecture white paper (2025) and product pages"

# Name, multiprocessors, boost clock (GHz), memory (GB) and its bandwidth (GB/s).
_Card = tuple[str, int, float, float, float]


def _rows(
    chip: dict[str, int], source: str, cards: Iterable[_Card], matches: str | None = None
) -> Iterator[DeviceSpec]:
    for name, units, ghz, gb, gb_per_s in cards:
        peaks = {dtype: operations * units * ghz * 1e9 for dtype, operations in chip.items()}
        pattern = matches or _matches(name.removeprefix("GeForce "))
        yield DeviceSpec(f"NVIDIA {name}", pattern, peaks, gb_per_s * 1e9, gb * 1e9, units, source)


def _matches(name: str) -> str:
    """The name, of neither a better card (Ti, SUPER) nor one with less power (laptops)."""
    return rf"\b{name}\b(?! ?(Ti|SUPER|D)\b)(?!.*(Laptop|Max-Q|Mobile))"


GRAPHICS: tuple[DeviceSpec, ...] = (
    *_rows(_BLACKWELL_GEFORCE, _BLACKWELL_PAPER, [
        ("GeForce RTX 5080", 84, 2.617, 16, 960),
        ("GeForce RTX 5070 Ti", 70, 2.452, 16, 896),
        ("GeForce RTX 5070", 48, 2.512, 12, 672),
        ("GeForce RTX 5060 Ti", 36, 2.572, 16, 448),
        ("GeForce RTX 5060", 30, 2.497, 8, 448),
    ]),
    *_rows(_ADA_GEFORCE, _ADA_PAPER, [
        ("GeForce RTX 4080 SUPER", 80, 2.55, 16, 736),
        ("GeForce RTX 4080", 76, 2.505, 16, 717),
        ("GeForce RTX 4070 Ti SUPER", 66, 2.61, 16, 672),
        ("GeForce RTX 4070 Ti", 60, 2.61, 12, 504),
        ("GeForce RTX 4070 SUPER", 56, 2.475, 12, 504),
        ("GeForce RTX 4070", 46, 2.475, 12, 504),
        ("GeForce RTX 4060 Ti", 34, 2.535, 8, 288),
        ("GeForce RTX 4060", 24, 2.46, 8, 272),
    ]),
    *_rows(_ADA, _ADA_PAPER, [
        ("RTX 5000 Ada", 100, 2.55, 32, 576),
        ("RTX 4500 Ada", 60, 2.58, 24, 432),
        ("RTX 4000 Ada", 48, 2.175, 20, 360),
        ("RTX 2000 Ada", 22, 2.13, 16, 256),
    ]),
    *_rows(_AMPERE_GEFORCE, _AMPERE_PAPER, [
        ("GeForce RTX 3090 Ti", 84, 1.86, 24, 1008),
        ("GeForce RTX 3080 Ti", 80, 1.665, 12, 912),
        ("GeForce RTX 3080", 68, 1.71, 10, 760),
        ("GeForce RTX 3070 Ti", 48, 1.77, 8, 608),
        ("GeForce RTX 3070", 46, 1.725, 8, 448),
        ("GeForce RTX 3060 Ti", 38, 1.665, 8, 448),
        ("GeForce RTX 3060", 28, 1.777, 12, 360),
    ]),
    *_rows(_AMPERE_CHIP, _AMPERE_PAPER, [
        ("RTX A5000", 64, 1.695, 24, 768),
        ("RTX A4500", 56, 1.65, 20, 640),
        ("RTX A4000", 48, 1.56, 16, 448),
        ("RTX A2000", 26, 1.2, 12, 288),
    ]),
    *_rows(_AMPERE_CHIP, "NVIDIA A16 and A2 datasheets (2021); an A16 has four such devices", [
        ("A16", 10, 1.755, 16, 200),
        ("A2", 10, 1.77, 16, 200),
    ]),
    # torch calls each of them "Orin": the memory distinguishes them. The clocks are those of full power.
    *_rows(_ORIN, "NVIDIA Jetson Orin series datasheets (2023)", [
        ("Jetson AGX Orin 64GB", 16, 1.3, 64, 204.8),
        ("Jetson AGX Orin 32GB", 14, 0.93, 32, 204.8),
        ("Jetson Orin NX 16GB", 8, 0.918, 16, 102.4),
        ("Jetson Orin Nano 8GB", 8, 0.625, 8, 68),
    ], r"\bOrin\b"),
    *_rows(_TURING_GEFORCE, _TURING_PAPER, [
        ("GeForce RTX 2080 Ti", 68, 1.545, 11, 616),
        ("GeForce RTX 2080 SUPER", 48, 1.815, 8, 496),
        ("GeForce RTX 2080", 46, 1.71, 8, 448),
        ("GeForce RTX 2070 SUPER", 40, 1.77, 8, 448),
        ("GeForce RTX 2070", 36, 1.62, 8, 448),
        ("GeForce RTX 2060 SUPER", 34, 1.65, 8, 448),
        ("GeForce RTX 2060", 30, 1.68, 6, 336),
    ]),
    *_rows(_TURING, _TURING_PAPER, [
        ("TITAN RTX", 72, 1.77, 24, 672),
        ("Quadro RTX 8000", 72, 1.77, 48, 672),
        ("Quadro RTX 6000", 72, 1.77, 24, 672),
        ("Quadro RTX 5000", 48, 1.815, 16, 448),
    ]),
    *_rows(_PASCAL, _PASCAL_PAPER, [
        ("TITAN Xp", 30, 1.582, 12, 548),
        ("GeForce GTX 1080 Ti", 28, 1.582, 11, 484),
        ("GeForce GTX 1080", 20, 1.733, 8, 320),
    ]),
)  # fmt: skip


def _row(
    name: str, matches: str, *, gb_per_s: float, gb: float, units: int, source: str, **teraflops: float
) -> DeviceSpec:
    peaks = {dtype: rate * 1e12 for dtype, rate in teraflops.items()}
    return DeviceSpec(name, matches, peaks, gb_per_s * 1e9, gb * 1e9, units, source)


_HOPPER = {"fp64": 67, "fp32": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_HOPPER_NVL = {
    "fp64": 60, "fp32": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1670.5, "int8": 1670.5,
}  # fmt: skip
_AMPERE = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_BLACKWELL = {"fp32": 75, "tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500}
_GRACE_BLACKWELL = {"fp32": 80, "tf32": 1250, "fp16": 2500, "bf16": 2500, "fp8": 5000}
_CDNA3 = {
    "fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4,
    "fp8": 2614.9, "int8": 2614.9,
}  # fmt: skip

DEVICES: tuple[DeviceSpec, ...] = (
    # NVIDIA Blackwell, data center.
    _row("NVIDIA GB300", r"\bGB300\b", **_GRACE_BLACKWELL, fp64=1.4, int8=165, fp4=15_000,
         gb_per_s=8000, gb=288, units=152, source="NVIDIA GB300 NVL72 datasheet (2025), one of 72 GPUs"),
    _row("NVIDIA GB200", r"\bGB200\b", **_GRACE_BLACKWELL, fp64=40, int8=5000, fp4=10_000,
         gb_per_s=8000, gb=186, units=152, source="NVIDIA GB200 NVL72 and HGX B200 datasheet (2025)"),
    _row("NVIDIA B300", r"\bB300\b", **_BLACKWELL, fp64=1.25, int8=150, fp4=13_500,
         gb_per_s=8000, gb=288, units=148, source="NVIDIA HGX B300 datasheet (2025), one of 8 GPUs"),
    _row("NVIDIA B200", r"\bB200\b", **_BLACKWELL, fp64=37, int8=4500, fp4=9000,
         gb_per_s=7700, gb=180, units=148, source="NVIDIA GB200 NVL72 and HGX B200 datasheet (2025)"),
    # NVIDIA Hopper.
    _row("NVIDIA GH200 96GB", r"\bGH200\b", **_HOPPER,
         gb_per_s=4000, gb=96, units=132, source="NVIDIA GH200 Grace Hopper Superchip datasheet"),
    _row("NVIDIA GH200 144GB", r"\bGH200\b", **_HOPPER,
         gb_per_s=4900, gb=144, units=132, source="NVIDIA GH200 Grace Hopper Superchip datasheet"),
    _row("NVIDIA H200 NVL", r"\bH200 NVL\b", **_HOPPER_NVL,
         gb_per_s=4800, gb=141, units=132, source="NVIDIA H200 Tensor Core GPU datasheet (2024), NVL"),
    _row("NVIDIA H200", r"\bH200\b(?! NVL)", **_HOPPER,
         gb_per_s=4800, gb=141, units=132, source="NVIDIA H200 Tensor Core GPU datasheet (2024), SXM"),
    _row("NVIDIA H100 NVL", r"\bH100 NVL\b", **_HOPPER_NVL,
         gb_per_s=3938, gb=94, units=132, source="NVIDIA H100 NVL GPU product brief, PB-11773-001"),
    _row("NVIDIA H100 PCIe", r"\bH100[ -](PCIe|80GB HBM2e)",
         fp64=51.2, fp32=51.2, tf32=378, fp16=756, bf16=756, fp8=1513, int8=1513,
         gb_per_s=2039, gb=80, units=114,
         source="NVIDIA H100 Tensor Core GPU architecture white paper, PCIe"),
    _row("NVIDIA H100 SXM", r"\bH100\b(?![ -](NVL|PCIe|80GB HBM2e))", **_HOPPER,
         gb_per_s=3352, gb=80, units=132,
         source="NVIDIA H100 Tensor Core GPU architecture white paper, SXM5"),
    _row("NVIDIA H800 SXM", r"\bH800\b(?! PCIe)", **{**_HOPPER, "fp64": 1},
         gb_per_s=3352, gb=80, units=132, source="NVIDIA H800 datasheet, SXM"),
    _row("NVIDIA H20", r"\bH20\b",
         fp64=1, fp32=44, tf32=74, fp16=148, bf16=148, fp8=296, int8=296,
         gb_per_s=4000, gb=96, units=78, source="NVIDIA H20 datasheet"),
    # NVIDIA Ampere, data center. Where only "A100" is said, it is the SXM4 module with 40 GB.
    _row("NVIDIA A100 PCIe 80GB", r"\bA[18]00\b(?=.*80 ?GB)(?=.*PCIe)", **_AMPERE,
         gb_per_s=1935, gb=80, units=108,
         source="NVIDIA A100 Tensor Core GPU datasheet, 1758950 r4, 80GB PCIe"),
    _row("NVIDIA A100 PCIe 40GB", r"\bA100\b(?!.*80 ?GB)(?=.*PCIe)", **_AMPERE,
         gb_per_s=1555, gb=40, units=108,
         source="NVIDIA A100 Tensor Core GPU architecture white paper (2020)"),
    _row("NVIDIA A100 SXM4 40GB", r"\bA100\b(?!.*80 ?GB)(?!.*PCIe)", **_AMPERE,
         gb_per_s=1555, gb=40, units=108,
         source="NVIDIA A100 Tensor Core GPU architecture white paper (2020)"),
    _row("NVIDIA A100 SXM4 80GB", r"\bA[18]00\b(?!.*(PCIe|40 ?GB))", **_AMPERE,
         gb_per_s=2039, gb=80, units=108,
         source="NVIDIA A100 Tensor Core GPU datasheet, 1758950 r4, 80GB SXM"),
    _row("NVIDIA A30", r"\bA30\b", fp64=10.3, fp32=10.3, tf32=82, fp16=165, bf16=165, int8=330,
         gb_per_s=933, gb=24, units=56, source="NVIDIA A30 Tensor Core GPU datasheet (2021)"),
    _row("NVIDIA A10G", r"\bA10G\b", fp64=0.55, fp32=35, tf32=35, fp16=70, bf16=70, int8=140,
         gb_per_s=600, gb=24, units=80, source="NVIDIA A10G datasheet (AWS EC2 G5)"),
    _row("NVIDIA A10", r"\bA10\b", fp64=0.49, fp32=31.2, tf32=62.5, fp16=125, bf16=125, int8=250,
         gb_per_s=600, gb=24, units=72, source="NVIDIA A10 Tensor Core GPU datasheet (2021)"),
    _row("NVIDIA A40", r"\bA40\b", fp64=0.58, fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7, int8=299.3,
         gb_per_s=696, gb=48, units=84, source="NVIDIA A40 datasheet (2020)"),
    _row("NVIDIA RTX A6000", r"\bRTX A6000\b",
         fp64=0.6, fp32=38.7, tf32=77.4, fp16=154.8, bf16=154.8, int8=309.7,
         gb_per_s=768, gb=48, units=84, source="NVIDIA Ampere GA102 GPU architecture white paper (2020)"),
    # NVIDIA Ada.
    _row("NVIDIA L4", r"\bL4\b", fp64=0.47, fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5,
         gb_per_s=300, gb=24, units=58, source="NVIDIA L4 Tensor Core GPU datasheet (2023)"),
    _row("NVIDIA L40S", r"\bL40S\b",
         fp64=1.43, fp32=91.6, tf32=183, fp16=362.05, bf16=362.05, fp8=733, int8=733,
         gb_per_s=864, gb=48, units=142, source="NVIDIA L40S datasheet (2023)"),
    # NVIDIA states half of the L40S's rates for the L40, though both are one chip at nearly the same clock.
    _row("NVIDIA L40", r"\bL40\b",
         fp64=1.41, fp32=90.5, tf32=90.5, fp16=181.05, bf16=181.05, fp8=362, int8=362,
         gb_per_s=864, gb=48, units=142, source="NVIDIA L40 datasheet (2022)"),
    _row("NVIDIA RTX 6000 Ada", r"\bRTX 6000 Ada\b",
         fp64=1.42, fp32=91.1, tf32=182.1, fp16=364.2, bf16=364.2, fp8=728.5, int8=728.5,
         gb_per_s=960, gb=48, units=142, source="NVIDIA Ada GPU architecture white paper (2022)"),
    # GeForce: tensor cores run at half rate when they accumulate in fp32, as PyTorch has them do.
    _row("NVIDIA GeForce RTX 3090", r"\bRTX 3090\b(?! Ti)",
         fp64=0.56, fp32=35.6, tf32=35.6, fp16=71, bf16=71, int8=284,
         gb_per_s=936, gb=24, units=82, source="NVIDIA Ampere GA102 GPU architecture white paper (2020)"),
    _row("NVIDIA GeForce RTX 4090", r"\bRTX 4090\b(?! (Laptop|D\b))",
         fp64=1.29, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6,
         gb_per_s=1008, gb=24, units=128, source="NVIDIA Ada GPU architecture white paper (2022)"),
    _row("NVIDIA GeForce RTX 5090", r"\bRTX 5090\b(?! (Laptop|D\b))",
         fp64=1.64, fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, int8=838, fp4=1676,
         gb_per_s=1792, gb=32, units=170, source="NVIDIA RTX Blackwell GPU architecture white paper (2025)"),
    _row("NVIDIA RTX PRO 6000 Blackwell", r"\bRTX PRO 6000 Blackwell\b(?!.*Max-Q)",
         fp64=1.97, fp32=126, tf32=251.9, fp16=503.8, bf16=503.8, fp8=1007.6, int8=1007.6, fp4=2015.2,
         gb_per_s=1792, gb=96, units=188,
         source="NVIDIA RTX Blackwell PRO GPU architecture white paper (2025)"),
    # NVIDIA Volta and Turing: no bf16 units.
    _row("NVIDIA V100S PCIe", r"\bV100S\b", fp64=8.2, fp32=16.4, fp16=130,
         gb_per_s=1134, gb=32, units=80, source="NVIDIA V100 datasheet, V100S PCIe"),
    _row("NVIDIA V100 PCIe", r"\bV100-PCIe", fp64=7, fp32=14, fp16=112,
         gb_per_s=900, gb=16, units=80, source="NVIDIA V100 datasheet, PCIe"),
    _row("NVIDIA V100 SXM2", r"\bV100\b(?!-PCIe)", fp64=7.8, fp32=15.7, fp16=125,
         gb_per_s=900, gb=32, units=80, source="NVIDIA V100 datasheet, SXM2"),
    _row("NVIDIA T4", r"\bT4\b", fp64=0.25, fp32=8.1, fp16=65, int8=130,
         gb_per_s=320, gb=16, units=40, source="NVIDIA T4 Tensor Core GPU datasheet (2019)"),
    # NVIDIA Pascal, data center: no tensor cores.
    _row("NVIDIA P100 PCIe", r"\bP100-PCIE", fp64=4.7, fp32=9.3, fp16=18.7,
         gb_per_s=732, gb=16, units=56, source="NVIDIA Tesla P100 datasheet (2016), PCIe"),
    _row("NVIDIA P100 SXM2", r"\bP100\b(?!-PCIE)", fp64=5.3, fp32=10.6, fp16=21.2,
         gb_per_s=732, gb=16, units=56, source="NVIDIA Tesla P100 datasheet (2016), SXM2"),
    _row("NVIDIA P40", r"\bP40\b", fp64=0.367, fp32=11.76,
         gb_per_s=346, gb=24, units=30, source="NVIDIA Tesla P40 datasheet (2016)"),
    # AMD CDNA: bf16 at half the rate of fp16.
    _row("AMD Instinct MI100", r"\bMI100\b", fp64=11.5, fp32=46.1, fp16=184.6, bf16=92.3, int8=184.6,
         gb_per_s=1228.8, gb=32, units=120, source="AMD Instinct MI100 accelerator brochure (2020)"),
    # AMD CDNA 2: torch sees each of the two dies of a MI250(X) as a device, so a row is half the card.
    _row("AMD Instinct MI210", r"\bMI210\b", fp64=45.3, fp32=45.3, fp16=181, bf16=181, int8=181,
         gb_per_s=1638.4, gb=64, units=104, source="AMD Instinct MI210 accelerator brochure"),
    _row("AMD Instinct MI250X (one die)", r"\bMI250X\b",
         fp64=47.9, fp32=47.9, fp16=191.5, bf16=191.5, int8=191.5,
         gb_per_s=1638.4, gb=64, units=110, source="AMD Instinct MI250X datasheet, half"),
    _row("AMD Instinct MI250 (one die)", r"\bMI250\b", fp64=45.3, fp32=45.3, fp16=181, bf16=181, int8=181,
         gb_per_s=1638.4, gb=64, units=104, source="AMD Instinct MI250 datasheet, half"),
    # AMD CDNA 3 and 4. The fp32 and fp64 rates are the matrix cores'; CDNA 4 has no tf32.
    _row("AMD Instinct MI300X", r"\bMI300X\b", **_CDNA3,
         gb_per_s=5300, gb=192, units=304, source="AMD Instinct MI300X accelerator data sheet (2023)"),
    _row("AMD Instinct MI300A", r"\bMI300A\b",
         fp64=122.6, fp32=122.6, tf32=490.3, fp16=980.6, bf16=980.6, fp8=1961.2, int8=1961.2,
         gb_per_s=5300, gb=128, units=228, source="AMD Instinct MI300A APU data sheet (2023)"),
    _row("AMD Instinct MI325X", r"\bMI325X\b", **_CDNA3,
         gb_per_s=6000, gb=256, units=304, source="AMD Instinct MI325X accelerator data sheet (2024)"),
    _row("AMD Instinct MI350X", r"\bMI350X?\b",
         fp64=72.1, fp32=144.2, fp16=2306.9, bf16=2306.9, fp8=4613.7, int8=4613.7, fp4=9227.5,
         gb_per_s=8000, gb=288, units=256, source="AMD Instinct MI350X GPU brochure (2025)"),
    _row("AMD Instinct MI355X", r"\bMI355X?\b",
         fp64=78.6, fp32=157.3, fp16=2516.6, bf16=2516.6, fp8=5033.2, int8=5033.2, fp4=10066.3,
         gb_per_s=8000, gb=288, units=256, source="AMD Instinct MI355X GPU brochure (2025)"),
    *GRAPHICS,
)  # fmt: skip
