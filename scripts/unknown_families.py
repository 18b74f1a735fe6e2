"""Print how much device time no rule of the taxonomy knows the family of, and the kernels' names:

    python scripts/unknown_families.py tests/fixtures ../shared/data some/trace.json.gz

A new name becomes a line of `analysis/kernels/taxonomy.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kinetoscope.analysis.events.rows import matching
from kinetoscope.analysis.kernels.taxonomy import OTHER
from kinetoscope.analysis.kernels.work import work_of_all
from kinetoscope.errors import InputError
from kinetoscope.sources.paths import TRACE_FILE
from kinetoscope.sources.run import load

LISTED = 10


def main(inputs: list[str]) -> None:
    for path in [file for item in inputs for file in _traces(Path(item))]:
        try:
            table = work_of_all(load(path))
        except InputError:
            continue  # a measurement or a program's own file
        total = int(table["duration_ns"].sum())
        rows = table.filter(matching(table, "category", f"^{OTHER}$"))
        print(f"{int(rows['duration_ns'].sum()) / max(total, 1):7.2%}  {path}")
        names = rows.group_by("name").agg(pl.col("duration_ns").sum(), pl.len())
        for name, duration, count in names.sort("duration_ns", descending=True).head(LISTED).iter_rows():
            print(f"         {duration / max(total, 1):7.2%}  {count:6,} × {name[:120]}")


def _traces(item: Path) -> Iterator[Path]:
    yield from sorted(p for p in item.rglob("*") if TRACE_FILE.search(p.name)) if item.is_dir() else [item]


if __name__ == "__main__":
    main(sys.argv[1:])
