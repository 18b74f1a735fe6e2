"""How fast a device's links to its neighbours are, in one direction: what nccl-tests compare bus bandwidth
with.

NVIDIA gives both directions together, over all links of a GPU: 160, 300, 600, 900 and 1,800 GB/s from
NVLink 1 to 5 (4, 6, 12, 18 and 18 links: "NVLink and NVLink Switch" on nvidia.com; white papers of P100,
V100, A100); 400 GB/s of what is sold as A800 and H800. PCI-SIG's 8 and 16 GT/s a lane, less 128b/130b
coding, are 15.75 and 31.5 GB/s for sixteen lanes (datasheets: 32 and 64 GB/s, both directions). Where links
lead to single neighbours, as in hosts of eight P100 or V100 without a switch, a ring of all reaches less.

Devices of a host that may be joined by a bridge or not, as PCIe cards of the data center, are not in it.
"""

from __future__ import annotations

import re

# Bytes/s of one direction: half of what datasheets call the NVLink bandwidth of a GPU; sixteen lanes of PCIe.
_NVLINK_5, _NVLINK_4, _NVLINK_3, _NVLINK_2, _NVLINK_1 = 900e9, 450e9, 300e9, 150e9, 80e9
_PCIE_4, _PCIE_3 = 31.5e9, 15.75e9

LINKS = (
    (r"\bG?B[23]00\b", _NVLINK_5),  # NVIDIA GB200 NVL72 and HGX B200/B300 datasheets: 1.8 TB/s
    (r"\bH800\b(?! PCIe)", 200e9),  # NVIDIA H800 datasheet, SXM: 400 GB/s
    (r"\b(H200|H20)\b(?! NVL)|\bGH200\b", _NVLINK_4),  # NVIDIA H200 and H20 datasheets, SXM: 900 GB/s
    (r"\bH100\b(?![ -](NVL|PCIe|80GB HBM2e))", _NVLINK_4),  # NVIDIA H100 white paper, SXM5: 900 GB/s
    (r"\bA800\b(?!.*PCIe)", 200e9),  # NVIDIA A800 datasheet, SXM: 400 GB/s
    (r"\bA100\b(?!.*PCIe)", _NVLINK_3),  # NVIDIA A100 white paper, SXM4: 600 GB/s
    (r"\bV100-SX", _NVLINK_2),  # NVIDIA V100 datasheet, SXM2: 300 GB/s
    (r"\bP100-SXM", _NVLINK_1),  # NVIDIA P100 datasheet, SXM2: 160 GB/s
    (r"\b(L4|L40S?|A10G?|RTX 4090|RTX 6000 Ada)\b", _PCIE_4),  # no NVLink: PCIe 4.0
    (r"\bT4\b", _PCIE_3),  # NVIDIA T4 datasheet: PCIe 3.0
)


def link(name: str) -> float | None:
    """Bytes/s of one direction between two devices of that name (torch's) of a host; None: unknown."""
    if re.search(r"\bMIG\b|\bGRID\b", name):
        return None
    return next((rate for pattern, rate in LINKS if re.search(pattern, name, re.IGNORECASE)), None)
