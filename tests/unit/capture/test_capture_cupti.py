"""Whether CUPTI may be detached is read from the library that the process has loaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinetoscope.capture.recorder import cupti

SOURCE = """
#include <stdint.h>
int cuptiGetVersion(uint32_t *version) { *version = VERSION; return 0; }
int cuptiFinalize(void) { return RESULT; }
"""


def library(folder: Path, version: int, result: int = 0) -> Path:
    """A CUPTI of that version, which says that of being detached; the file lists it as a process' memory."""
    target = folder / f"libcupti.so.{version}.{result}"
    flags = [f"-DVERSION={version}", f"-DRESULT={result}", "-shared", "-fPIC", "-xc", "-"]
    try:
        subprocess.run(["cc", *flags, "-o", target], input=SOURCE, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here to make a CUPTI of")
    maps = folder / f"maps.{version}.{result}"
    maps.write_text(f"7f00-7f01 r--p 0 08:01 1  /lib/libc.so.6\n7f01-7f02 r-xp 0 08:01 9          {target}\n")
    return maps


def test_cupti_is_detached_where_that_was_tried(tmp_path: Path) -> None:
    assert cupti.detach(library(tmp_path, cupti.TRIED))
    assert not cupti.detach(library(tmp_path, cupti.TRIED, result=1))  # it refused
    assert not cupti.detach(library(tmp_path, 28))  # of CUDA 12


def test_without_cupti_nothing_is_detached(tmp_path: Path) -> None:
    assert not cupti.detach(tmp_path / "nowhere")
    (tmp_path / "maps").write_text("7f00-7f01 r--p 0 08:01 1  /lib/libc.so.6\n")
    assert not cupti.detach(tmp_path / "maps")
    (tmp_path / "gone").write_text(f"7f00-7f01 r--p 0 08:01 1  {tmp_path}/libcupti.so.13\n")
    assert not cupti.detach(tmp_path / "gone")
