"""What lies between our cold time and Nsight Compute's, and what moves a median from process to process.

    PYTHONPATH=src python tests/gpu/prove_cold.py OUT --data FOLDER [SECTION…]

FOLDER holds mixnet_l_forward.py.gz and mixnet_l_backward.py.gz. Kernels are those of ``generated_modules``,
the ten largest of a Llama training step, and an empty one.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import proving
from generated_modules import MIXNET, llama, mixnet
from kinetoscope.bench.kernels import ncu, replica
from kinetoscope.bench.kernels import subjects as kernels
from kinetoscope.bench.measure.timers import ActivityTimer, device_flush, record
from kinetoscope.bench.request import environment

METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_active.max",
    "sm__cycles_elapsed.avg.per_second",
    "dram__cycles_elapsed.avg.per_second",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
EMPTY = "spin_kernel"
Call = Callable[[], object]


def subjects(data: Path, modules: Path) -> list[kernels.Subject]:
    found: list[kernels.Subject] = []
    for direction, names in MIXNET.items():
        every, _ = kernels.find(mixnet(data, direction))
        found += [next(s for s in every if s.kernel.name == name) for name in names]
    every, _ = kernels.find(modules)
    return found + sorted(every, key=lambda s: -s.bytes * s.launches)[:10]


def built(subject: kernels.Subject, sets: int) -> list[Call]:
    made = replica.Replica(subject.kernel)
    return [
        made.bind(replica.arguments(subject.arguments, "cuda", seed, subject.facts.index_bound))
        for seed in range(sets)
    ]


def instruction_flush() -> Call:
    """Many kernels of many instructions on every SM: they fill the instruction and constant caches."""
    import torch

    x = torch.rand(132 * 2048, device="cuda") + 0.5
    out = torch.empty_like(x)
    special = torch.special
    many = [
        torch.lgamma,
        torch.digamma,
        special.i0e,
        special.i1,
        special.i1e,
        special.ndtri,
        special.log_ndtr,
    ]
    many += [special.bessel_j0, special.bessel_j1, special.bessel_y0, special.erfcx, torch.sin, torch.tan]

    def run() -> None:
        for function in many:
            function(x, out=out)

    return run


def variants() -> dict[str, tuple[list[Call], bool]]:
    """Name → what runs before each timed launch, and whether the device is idle when it starts."""
    import torch

    size = torch.cuda.get_device_properties(0).L2_cache_size
    flush, code = device_flush(), instruction_flush()
    wide = torch.ones(16 * size // (4 * 4096), 4096, device="cuda")
    rows = torch.empty(wide.shape[0], device="cuda")
    columns = torch.empty(4096, device="cuda")
    flat = torch.zeros(4 * size // 4, device="cuda")
    return {
        "queue": ([flush], False),
        "queue 16x": ([lambda: torch.amax(wide, dim=1, out=rows)], False),
        "queue by column": ([lambda: torch.amax(wide, dim=0, out=columns)], False),
        "queue write": ([lambda: flat.fill_(1.0)], False),
        "queue write+read": ([lambda: flat.fill_(1.0), flush], False),
        "queue code": ([flush, code], False),
        "idle": ([flush], True),
        "idle code": ([flush, code], True),
    }


def sample(calls: list[Call], before: list[Call], idle: bool, count: int) -> list[float]:
    import torch

    marker = torch.zeros(1, device="cuda")

    def run() -> None:
        for number in range(count):
            for call in before:
                call()
            torch.erfinv(marker, out=marker)
            if idle:
                torch.cuda.synchronize()
                time.sleep(100e-6)
            calls[number % len(calls)]()
            torch.erfinv(marker, out=marker)

    work = record(run)
    marks = [i for i, activity in enumerate(work) if "erfinv" in activity.name]
    spans = [work[i + 1 : j] for i, j in zip(marks[::2], marks[1::2], strict=True)]
    return [float(span[-1].end_ns - span[0].start_ns) for span in spans]


def methods(data: Path, modules: Path, out: Path) -> dict[str, dict[str, float]]:
    """Every kernel by every way of making it cold; medians in ns."""
    import torch

    ways = variants()
    rows: dict[str, dict[str, float]] = {}
    chosen = subjects(data, modules)
    todo: list[tuple[str, list[Call], int]] = [(EMPTY, [lambda: torch.cuda._sleep(0)], 0)]
    for subject in chosen:
        todo.append((subject.kernel.name, [], subject.bytes))
    for (name, calls, moved), subject in zip(todo, [None, *chosen], strict=True):
        ready = calls if subject is None else built(subject, replica.sets(subject.bytes, "cuda"))
        for call in ready:
            call()
        samples: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(4):
            for way, (before, idle) in ways.items():
                samples[way] += sample(ready, before, idle, 24)
        rows[name] = {way: statistics.median(times) for way, times in samples.items()} | {"bytes": moved}
        del ready
        torch.cuda.empty_cache()
    (out / "methods.json").write_text(json.dumps(rows, indent=1))
    return rows


def launch(data: Path, modules: Path, flushed: bool) -> None:
    """What Nsight Compute watches: each kernel six times, the caches flushed in front of each or not."""
    import torch

    flush = device_flush()
    todo: list[Call] = [lambda: torch.cuda._sleep(0)]
    for subject in subjects(data, modules):
        todo += built(subject, 1)
    for call in todo:
        for _ in range(6):
            if flushed:
                flush()
            call()
            torch.cuda.synchronize()


def under_ncu(
    data: Path, modules: Path, names: list[str], *, control: str, flushed: bool, metrics: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Medians of each metric over launches 2 to 6 of each kernel, in base units."""
    section = "flushed" if flushed else "launch"
    program = [sys.executable, __file__, str(modules), "--data", str(data), section]
    line = ncu.command(ncu.find(), [], program)
    line[line.index("--kernel-name") + 1] = "regex:^(" + "|".join(names) + ")$"
    line[line.index("--metrics") + 1] = ",".join(metrics)
    line[1:1] = ["--cache-control", control, "--print-units", "base", "--print-kernel-base", "function"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        env=environment() | {"PYTHONPATH": ":".join(sys.path)},
    )
    lines = done.stdout.splitlines()
    start = next((i for i, text in enumerate(lines) if text.startswith('"ID"')), None)
    if start is None:
        print("NCU FAILED", done.stderr[-800:], done.stdout[-800:])
        return {}
    header, _, *found = csv.reader(io.StringIO("\n".join(lines[start:])))
    rows: dict[str, dict[str, list[float]]] = {}
    for cells in found:
        row = dict(zip(header, cells, strict=True))
        kept = rows.setdefault(row["Kernel Name"], {})
        for metric in metrics:
            kept.setdefault(metric, []).append(float(row[metric].replace(",", "")))
    return {
        name: {metric: statistics.median(values[1:]) for metric, values in kept.items()}
        for name, kept in rows.items()
    }


def against_ncu(data: Path, out: Path) -> None:
    modules = llama(out)
    rows = methods(data, modules, out)
    names = list(rows)
    duration = METRICS[:1]
    seen = {
        "all": under_ncu(data, modules, names, control="all", flushed=False, metrics=duration),
        "none, flushed": under_ncu(data, modules, names, control="none", flushed=True, metrics=duration),
        "none": under_ncu(data, modules, names, control="none", flushed=False, metrics=duration),
    }
    counters = {
        "all": under_ncu(data, modules, names, control="all", flushed=False, metrics=METRICS),
        "none, flushed": under_ncu(data, modules, names, control="none", flushed=True, metrics=METRICS),
    }
    (out / "ncu.json").write_text(json.dumps({"duration": seen, "counters": counters}, indent=1))
    ways = list(variants())
    print(f"\n{'µs':40}", *(f"{way:>10.10}" for way in [*ways, *(f"ncu {k}" for k in seen)]))
    for name in names:
        cells = [rows[name][way] / 1e3 for way in ways]
        cells += [table.get(name, {}).get(METRICS[0], float("nan")) / 1e3 for table in seen.values()]
        print(f"{name[:14]}…{name[-25:]:25}", *(f"{cell:10.2f}" for cell in cells))
    for control, table in counters.items():
        print(
            f"\nncu, cache control {control}: duration µs, cycles elapsed, active, SM MHz, DRAM MHz, "
            "read MB, written MB; bytes MB"
        )
        for name in names:
            row = table.get(name)
            if row:
                d, e, a, s, m, r, w = (row[metric] for metric in METRICS)
                print(
                    f"{name[:14]}…{name[-25:]:25} {d / 1e3:9.2f} {e:9.0f} {a:9.0f} {s / 1e6:6.0f} "
                    f"{m / 1e6:6.0f} {r / 1e6:8.1f} {w / 1e6:8.1f} {rows[name]['bytes'] / 1e6:8.1f}"
                )


SPREAD = (*MIXNET["backward"][:3], MIXNET["backward"][5], MIXNET["forward"][1])


def one_process(data: Path) -> None:
    """Prints JSON: kernel → method → (median ns of each set of buffers), for one process."""
    import torch

    timer = ActivityTimer()
    rows: dict[str, dict[str, list[list[float]]]] = {}
    for direction in MIXNET:
        every, _ = kernels.find(mixnet(data, direction))
        for subject in every:
            if subject.kernel.name not in SPREAD:
                continue
            row: dict[str, list[list[float]]] = {}
            for sets in (4, 16):
                calls = built(subject, sets)
                for call in calls:
                    call()
                rounds = 384 // sets
                samples = timer.time(calls * rounds, "cold", lambda: None)
                row[f"cold {sets}"] = [samples[i::sets] for i in range(sets)]
                hot = timer.time([call for call in calls for _ in range(24)], "hot", lambda: None)
                # The first of each run of one set finds another's data in the cache.
                row[f"hot {sets}"] = [hot[24 * i + 2 : 24 * (i + 1)] for i in range(sets)]
                alternating = timer.time(
                    [c for c in calls * max(1, 96 // sets) for _ in range(2)], "hot", lambda: None
                )[1::2]
                row[f"primed {sets}"] = [alternating[i::sets] for i in range(sets)]
                del calls
                torch.cuda.empty_cache()
            rows[subject.kernel.name] = row
    print(json.dumps(rows))


def spread(data: Path, out: Path) -> None:
    found: list[dict[str, dict[str, list[list[float]]]]] = []
    for _ in range(5):
        done = proving.python(__file__, out, "--data", data, "process")
        if done.returncode:
            print(done.stderr[-1500:])
            return
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (out / "spread.json").write_text(json.dumps(found))
    print("\nmedian (µs) over 5 processes, max/min − 1 of processes; of the sets within a process (mean)")
    for name in found[0]:
        for method in found[0][name]:
            medians = [
                statistics.median(x for one in process[name][method] for x in one) for process in found
            ]
            within = [[statistics.median(one) for one in process[name][method]] for process in found]
            inner = statistics.mean(max(w) / min(w) - 1 for w in within)
            print(
                f"{name[:12]}…{name[-24:]:24} {method:9} {statistics.median(medians) / 1e3:8.2f} "
                f"{(max(medians) / min(medians) - 1) * 100:6.2f} %  {inner * 100:6.2f} %"
            )


def main() -> None:
    parser = proving.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("sections", nargs="*", default=["ncu", "spread"])
    chosen = parser.parse_intermixed_args()
    # These are run by the two others, in processes of their own, which read what they print.
    parts: dict[str, Callable[[], None]] = {
        "process": lambda: one_process(chosen.data),
        "launch": lambda: launch(chosen.data, chosen.out, flushed=False),
        "flushed": lambda: launch(chosen.data, chosen.out, flushed=True),
    }
    if chosen.sections[0] in parts:
        parts[chosen.sections[0]]()
        return
    sections: dict[str, Callable[[], None]] = {
        "ncu": lambda: against_ncu(chosen.data, chosen.out),
        "spread": lambda: spread(chosen.data, chosen.out),
    }
    proving.run_sections(chosen.sections, sections)


if __name__ == "__main__":
    main()
