"""Read what ``TORCH_COMPILE_DEBUG=1`` leaves: a folder a run, and in it one folder a generated module.

    torch_compile_debug/run_2026_…_pid_8611/
      torchdynamo/debug.log
      torchinductor/model__0_forward_1.0/  output_code.py  fx_graph_readable.py  fx_graph_transformed.py  ir_*.txt …

There are no metrics, guards or times in it. Each module becomes the records that the structured log would hold,
so that everything behind reads one form.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kinetoscope.compilation.log import Log, Record

MODEL = re.compile(
    r"^(?P<name>.*?)_+(?P<graph>\d+)_(?P<way>forward|backward|inference)_(?P<counter>\d+)(?:\.\d+)?$"
)
# The file of the folder, and the record that the structured log would have.
FILES = (
    ("fx_graph_readable.py", "aot_{way}_graph"),
    ("fx_graph_runnable.py", "fx_graph_runnable"),
    ("fx_graph_transformed.py", "inductor_post_grad_graph"),
    ("output_code.py", "inductor_output_code"),
)


def is_debug_folder(folder: Path) -> bool:
    """True for a TORCH_COMPILE_DEBUG folder, one run in it, or its ``torchinductor``."""
    return next(_models(folder), None) is not None


def debug_log(folder: Path) -> Log:
    """The modules of the folder as records, one frame a graph."""
    records: list[Record] = []
    data = bytearray()
    for model in _models(folder):
        match = MODEL.match(model.name)
        if match is None:
            continue
        for name, kind in FILES:
            path = model / name
            if not path.is_file():
                continue
            start = len(data)
            data += b"\t" + path.read_bytes().replace(b"\n", b"\n\t")
            kind_ = kind.format(way=match["way"])
            header = {kind_: {"filename": str(path)} if kind_ == "inductor_output_code" else {}}
            records.append(
                Record(
                    kind=kind_,
                    artifact="",
                    compile_id=f"{match['graph']}/0",
                    attempt=0,
                    rank=None,
                    header=msgspec.json.encode(header),
                    start=start,
                    end=len(data),
                )
            )
            data += b"\n"
    return Log(str(folder), bytes(data), tuple(records))


def _models(folder: Path):
    for pattern in (
        "*",
        "torchinductor/*",
        "run_*/torchinductor/*",
        "torch_compile_debug/run_*/torchinductor/*",
    ):
        for path in sorted(folder.glob(pattern)):
            if path.is_dir() and MODEL.match(path.name) and (path / "output_code.py").is_file():
                yield path
