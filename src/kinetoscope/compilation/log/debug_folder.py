"""Read what ``TORCH_COMPILE_DEBUG=1`` leaves: a folder a run, and in it one folder a generated module.

    torch_compile_debug/run_2026_…_pid_8611/
      torchdynamo/debug.log
      torchinductor/model__0_forward_1.0/  output_code.py  fx_graph_readable.py  ir_pre_fusion.txt …
    torch_compile_debug/tlparse/dedicated_log_torch_trace_….log

The last is a structured log, which newer versions (2.13, not 2.9) leave next to the runs; it is read where it
is there. Without it there are no metrics, guards or times. Each module then becomes the records that the
structured log would hold, so that everything behind reads one form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kinetoscope.compilation.log.read import Log, LogRecord
from kinetoscope.recording import plain_file

MODEL = re.compile(
    r"^(?P<name>.*?)_+(?P<graph>\d+)_(?P<direction>forward|backward|inference)_(?P<counter>\d+)(?:\.\d+)?$"
)
# The file of the folder, and the record that the structured log would have.
FILES = (
    ("fx_graph_readable.py", "aot_{direction}_graph"),
    ("fx_graph_runnable.py", "fx_graph_runnable"),
    ("fx_graph_transformed.py", "inductor_post_grad_graph"),
    ("output_code.py", "inductor_output_code"),
    ("inductor_provenance_tracking_node_mappings.json", "artifact"),
)
RUN = re.compile(r"^run_.*-pid_(?P<pid>\d+)$")


def is_debug_folder(folder: Path) -> bool:
    """True for a TORCH_COMPILE_DEBUG folder, one run in it, or its ``torchinductor``."""
    return next(models(folder), None) is not None or bool(dedicated_logs(folder))


def dedicated_logs(folder: Path) -> list[Path]:
    """The structured logs that torch left next to the runs; of one run alone, its process's."""
    run = next((path for path in (folder, folder.parent) if RUN.match(path.name)), None)
    home = run.parent if run else folder
    logs = [
        path for place in (home, home / "torch_compile_debug") for path in (place / "tlparse").glob("*.log")
    ]
    pid = run and RUN.match(run.name)
    if pid is None:
        return sorted(logs)
    header = re.compile(rf"^V\d{{4}} \S+ {pid['pid']} ".encode(), re.M)
    return [path for path in sorted(logs) if header.search(plain_file.opened(path).read(1 << 16))]


def debug_log(folder: Path) -> Log:
    """The modules of the folder as records, one frame a graph."""
    records: list[LogRecord] = []
    data = bytearray()
    for model in models(folder):
        match = MODEL.match(model.name)
        if match is None:
            continue
        for name, kind in FILES:
            path = model / name
            if not path.is_file():
                continue
            start = len(data)
            data += b"\t" + plain_file.content(path).replace(b"\n", b"\n\t")
            kind_ = kind.format(direction=match["direction"])
            value = {"filename": str(path)} if kind_ == "inductor_output_code" else {}
            artifact = path.stem if kind_ == "artifact" else ""
            records.append(_record(kind_, artifact, value, f"{match['graph']}/0", start, len(data)))
            data += b"\n"
        if not any(
            r.kind == "compilation_metrics" and r.compile_id == f"{match['graph']}/0" for r in records
        ):
            # There is code, so the compilation ended.
            records.append(
                _record("compilation_metrics", "", {}, f"{match['graph']}/0", len(data), len(data))
            )
    return Log(str(folder), bytes(data), tuple(records))


def _record(
    kind: str, artifact: str, value: dict[str, str], compile_id: str, start: int, end: int
) -> LogRecord:
    return LogRecord(
        kind=kind,
        artifact=artifact,
        compile_id=compile_id,
        attempt=0,
        rank=None,
        header=msgspec.json.encode({kind: value}),
        start=start,
        end=end,
    )


def models(folder: Path) -> Iterator[Path]:
    """The folders of generated modules, in the order in which they were compiled."""
    for pattern in (
        "*",
        "torchinductor/*",
        "run_*/torchinductor/*",
        "torch_compile_debug/run_*/torchinductor/*",
    ):
        found = [
            (path.parent, int(match["counter"]), path)
            for path in folder.glob(pattern)
            if (match := MODEL.match(path.name)) and (path / "output_code.py").is_file()
        ]
        yield from (path for *_, path in sorted(found))
