"""Graphics cards and the small data-center and embedded devices of the same chips.

Their rates are what the chip does in a clock times multiprocessors times boost clock, as the architectures'
white papers reckon them; tests hold them to the rates that NVIDIA states. Partners' cards are up to a
tenth faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kinetoscope.hardware.spec import DeviceSpec

# Dense operations (a multiply-add is two) a clock and multiprocessor, accumulating in fp32 as PyTorch has it:
# at half rate on GeForce cards, at full rate on Titans and workstation cards.
_PASCAL = {"fp64": 8, "fp32": 256}  # fp16 has a 64th of the fp32 rate there: no unit worth its name
_TURING = {"fp64": 4, "fp32": 128, "fp16": 1024, "int8": 2048}
_TURING_GEFORCE = _TURING | {"fp16": 512}
_AMPERE = {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048}
_AMPERE_GEFORCE = _AMPERE | {"tf32": 256, "fp16": 512, "bf16": 512}
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
    *_rows(_AMPERE, _AMPERE_PAPER, [
        ("RTX A5000", 64, 1.695, 24, 768),
        ("RTX A4500", 56, 1.65, 20, 640),
        ("RTX A4000", 48, 1.56, 16, 448),
        ("RTX A2000", 26, 1.2, 12, 288),
    ]),
    *_rows(_AMPERE, "NVIDIA A16 and A2 datasheets (2021); an A16 has four such devices", [
        ("A16", 10, 1.755, 16, 200),
        ("A2", 10, 1.77, 16, 200),
    ]),
    # torch calls each of them "Orin": the memory tells them apart. The clocks are those of full power.
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
