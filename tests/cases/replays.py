"""Writes the table of docs/evidence/replay.md: how exactly every recording that is there replays.

`PYTHONPATH=src:tests:tests/support python -m cases.replays`; recordings that are not there keep their rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinetoscope.analysis.replay.replay import StepReplay, replay
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.statistics.distribution import quantile
from rank_replays import replays

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "replay.md"
FIXTURES = ROOT / "tests" / "fixtures"
SHARED = ROOT.parent / "shared" / "data"
HEADS = ("recording", "ranks", "steps", "recorded", "replayed", "error", "unexplained")


@dataclass(frozen=True)
class Row:
    name: str
    ranks: str  # how many are replayed together, and which of them this is
    steps: int
    recorded_us: float
    replayed_us: float
    error: float
    unexplained: float

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.ranks} | {self.steps or 'none'} | {self.recorded_us:,.0f} µs | "
            f"{self.replayed_us:,.0f} µs | {self.error:+.2%} | {self.unexplained:.1%} |"
        )


def recordings() -> list[tuple[str, list[Path]]]:
    """Every recording that is there, by a name, with its files: fixtures, then those that are not ours to
    keep here. Ranks of one run go together."""
    fixtures = sorted(path for path in FIXTURES.rglob("*.json.gz") if path.parent.name != "h200_memory")
    alone = [path for path in fixtures if path.parent.name != "trace"]
    folders = sorted({path.parent.parent for path in fixtures if path.parent.name == "trace"})
    shared = [path for room in ("h200", "public") for path in sorted((SHARED / room).glob("*.json.gz"))]
    known = {path.name for path in alone}
    pairs: dict[str, list[Path]] = {}
    for path in sorted((SHARED / "h200-dist").glob("*.json.gz")):
        pairs.setdefault(path.name.rpartition("_")[0], []).append(path)
    together = [*pairs.items(), *((p.name, [p]) for p in sorted((SHARED / "public").glob("*rank")))]
    named = [(_name(path), [path]) for path in (*alone, *folders)]
    return [*named, *((_name(path), [path]) for path in shared if path.name not in known), *together]


def _name(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


def rows(name: str, files: Sequence[Path]) -> Iterator[Row]:
    """A row a rank; of ranks that are recorded together also how each replays by itself."""
    run = load(*files)
    for trace in run.traces:
        yield _row(name, "1" if len(run.traces) == 1 else f"rank {trace.rank} alone", replay(trace))
    if len(run.traces) > 1:
        for rank, found in as_recorded(run).items():
            yield _row(name, f"rank {rank} of {len(run.traces)}", found)


def as_recorded(run: LoadedRun) -> dict[int, StepReplay]:
    """Each rank's replay with the others', at the recording's pace."""
    return replays(LoadedRun(run.traces))


def _row(name: str, ranks: str, found: StepReplay) -> Row:
    return Row(name, ranks, found.steps, found.recorded_us, found.step_us, found.error, found.unexplained)


def main() -> None:
    introduction, rest = re.split(r"\n\d+ replays: ", PAGE.read_text())
    listed, heading, following = rest.partition("\n## ")
    table: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if line.startswith("| ") and not line.startswith(f"| {HEADS[0]} "):
            table.setdefault(line.split(" | ")[0], []).append(line)
    for name, files in recordings():
        table[f"| {name}"] = [str(row) for row in rows(name, files)]
        print(*table[f"| {name}"], sep="\n", flush=True)
    written = [introduction.rstrip(), "", *_table(table), ""]
    PAGE.write_text("\n".join(written) + heading + following)


def _table(rows: Mapping[str, Sequence[str]]) -> Iterator[str]:
    lines = [line for own in rows.values() for line in own]
    errors = [abs(float(line.split(" | ")[5].rstrip("%"))) for line in lines]
    yield (
        f"{len(errors)} replays: {quantile(errors, 0.5):.2f} % off at the median, "
        f"{quantile(errors, 0.9):.2f} % at the 90th percentile, {max(errors):.1f} % at most."
    )
    yield ""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|---{'|--:' * (len(HEADS) - 1)}|"
    yield from lines


if __name__ == "__main__":
    main()
