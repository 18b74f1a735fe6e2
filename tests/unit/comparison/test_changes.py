"""Small steps made by hand: their accounts and what changed between them, to the microsecond."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kinetoscope.comparison import baseline
from kinetoscope.comparison.account import Account, account
from kinetoscope.comparison.changes import Change, by, changes, ranked
from kinetoscope.comparison.comparability import surroundings
from kinetoscope.comparison.counts import counts
from kinetoscope.comparison.difference import difference, judged
from kinetoscope.comparison.gates import parse
from kinetoscope.recording.manifest import ClockSample, Environment, Manifest, RankRecord
from kinetoscope.sources.run import LoadedRun, load
from kinetoscope.views.difference import did
from traces import call, host, kernel, noted, step, trace

STEP = 100.0


@pytest.fixture(autouse=True)
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rules find is no part of an account, and takes them longer than all the rest."""
    monkeypatch.setattr("kinetoscope.comparison.findings.find", lambda run: [])


@cache
def run(*launches: tuple[str, str, float, float], steps: int = 3, waits: float = 0.0) -> LoadedRun:
    """Steps of 100 µs; each launch is (op, kernel, start, duration), launched 5 µs before it starts."""
    events: list[dict[str, Any]] = []
    for number in range(steps):
        begin = 1000.0 + number * STEP
        events.append(step(number, begin, STEP))
        for place, (op, name, start, duration) in enumerate(launches):
            correlation = 1000 * number + place + 1
            at = begin + start
            events += [
                host(op, at - 5, 4),
                call("cudaLaunchKernel", at - 4, 2, correlation),
                kernel(name, at, duration, correlation),
            ]
        if waits:
            events += [
                host("aten::item", begin + 60, waits + 2),
                call("cudaStreamSynchronize", begin + 61, waits, 0),
            ]
    return LoadedRun((trace(*events),))


def own(one: LoadedRun) -> Account:
    found = account(one)
    assert found is not None
    return found


def compared(base: LoadedRun, new: LoadedRun) -> dict[str, Change]:
    return {change.name: change for change in changes(own(base), own(new))}


def test_where_streams_overlap_an_instant_has_one_owner() -> None:
    one = own(run(("aten::mm", "a", 10, 30), ("aten::add", "b", 20, 40)))
    assert dict(one.launches.select("name", "us").iter_rows()) == pytest.approx({"a": 30, "b": 20})
    assert one.step_us == pytest.approx(STEP)


def test_a_slower_kernel_is_told_by_its_launches() -> None:
    found = compared(run(("aten::mm", "a", 10, 30)), run(("aten::mm", "a", 10, 40)))["a"]
    assert (found.what, found.kind) == ("slower", "kernel")
    assert found.busy_us == pytest.approx(10)
    assert found.per_launch_us == pytest.approx((30, 40))


def test_a_kernel_that_is_launched_more_often_is_no_slower_one() -> None:
    new = run(("aten::mm", "a", 10, 20), ("aten::mm", "a", 40, 20))
    found = compared(run(("aten::mm", "a", 10, 20)), new)["a"]
    assert (found.what, found.launches) == ("more often", (1, 2))
    assert found.busy_us == pytest.approx(20)


def test_a_replaced_kernel_names_both() -> None:
    found = compared(run(("aten::mm", "cutlass", 10, 30)), run(("aten::mm", "nvjet", 10, 20)))
    assert found["cutlass → nvjet"].what == "replaced"
    assert found["cutlass → nvjet"].busy_us == pytest.approx(-10)
    assert found["cutlass → nvjet"].ops == ("aten::mm",)


def test_sums_by_category_and_op_differ_as_the_busy_time_does() -> None:
    base = own(run(("aten::mm", "gemm", 10, 30), ("aten::add", "elementwise_kernel", 50, 10)))
    new = own(run(("aten::mm", "gemm", 10, 25), ("aten::mul", "elementwise_kernel", 50, 20)))
    for key in ("category", "op_name", "graph"):
        assert sum(row.delta_us for row in by(base, new, key)) == pytest.approx(new.busy_us - base.busy_us)


def test_counts_are_of_the_usual_step() -> None:
    found = counts(run(("aten::mm", "a", 10, 30), waits=5))
    assert (found["launches"], found["syncs"], found["ops"]) == (1, 1, 2)
    assert found["graph_breaks"] is None, "a bare trace does not tell"


def test_a_run_is_the_same_as_itself() -> None:
    one = run(("aten::mm", "a", 10, 30))
    found = difference([one], [one])
    assert found.step is not None
    assert (found.step.verdict, found.changes, found.facts) == ("same", (), ())
    assert found.surroundings.comparability == "good"


def test_steps_are_not_held_against_a_whole_recording() -> None:
    marked = run(("aten::mm", "a", 10, 30))
    unmarked = LoadedRun(
        (trace(host("aten::mm", 0, 9), call("cudaLaunchKernel", 1, 2, 1), kernel("a", 10, 30, 1)),)
    )
    found = difference([unmarked], [marked])
    assert found.surroundings.comparability == "none"
    assert "in the base no steps are marked" in found.surroundings.why[0]
    (gate,) = judged(found, [parse("step_time > 900%")])
    assert (gate.failed, gate.known) == (True, False), "it cannot be judged by a step of another kind"
    assert "cannot be judged: in the base no steps are marked" in gate.words


def test_repeated_runs_sum_to_the_difference_of_their_means() -> None:
    base = [run(("aten::mm", "a", 10, 30)), run(("aten::mm", "a", 10, 31))]
    new = [run(("aten::mm", "a", 10, 50)), run(("aten::mm", "a", 10, 52))]
    found = difference(base, new)
    assert found.step is not None
    assert sum(change.delta_us for change in found.changes) == pytest.approx(found.step.delta_us)
    assert "2 and 2 runs" in found.step.basis


def test_an_added_wait_owns_the_idle_time_behind_it() -> None:
    base = run(("aten::mm", "a", 10, 30), ("aten::mm", "b", 50, 10))
    new = run(("aten::mm", "a", 10, 30), ("aten::mm", "b", 90, 10), waits=5)
    found = difference([base], [new]).changes
    (wait,) = [change for change in found if change.kind == "sync"]
    assert wait.name == "1 synchronization per step added: aten::item"
    assert {part.kind for part in wait.parts} <= {"sync", "idle"}
    assert sum(part.delta_us for part in wait.parts) == pytest.approx(wait.delta_us)
    assert found[0] is wait


def test_a_memory_format_owns_its_conversions_and_the_kernels_for_it() -> None:
    base = run(
        ("aten::cudnn_convolution", "nchwToNhwcKernel", 10, 10),
        ("aten::native_batch_norm", "batch_norm_collect_statistics_kernel", 20, 20),
        ("aten::mm", "gemm", 50, 10),
    )
    new = run(
        ("aten::native_batch_norm", "batch_norm_collect_statistics_channels_last_kernel", 20, 5),
        ("aten::mm", "gemm", 50, 5),
    )
    found = {change.name: change for change in difference([base], [new]).changes}
    layout = found["memory format: 1 layout conversion per step removed"]
    assert (layout.kind, layout.busy_us) == ("layout", pytest.approx(-25))
    assert found["gemm"].busy_us == pytest.approx(-5), "a product has no memory format"


def test_an_optimizer_made_otherwise_is_one_change() -> None:
    step = "Optimizer.step#AdamW.step"
    base, new = (
        LoadedRun((trace(*_optimizer(step, names)),))
        for names in (("mul", "steps", "div"), ("steps", "fused"))
    )
    (found,) = [change for change in changes(own(base), own(new)) if change.what == "replaced"]
    assert [work.name for work in found.base] == ["mul", "div"], "though one between them is still there"
    assert [work.name for work in found.new] == ["fused"]


def _optimizer(step: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    events = [host(step, 0, 90, "user_annotation")]
    for place, name in enumerate(names):
        at = 10.0 + 30 * place
        events += [
            host(f"aten::_{name}_", at, 8),
            call("cudaLaunchKernel", at + 1, 2, place + 1),
            kernel(name, at + 10, 20 - 5 * place, place + 1),
        ]
    return events


def test_what_is_counted_stands_first_where_time_cannot_tell() -> None:
    noise = Change(kind="kernel", what="slower", name="noise", delta_us=9.0)
    known = Change(kind="graph_break", what="added", name="break", delta_us=-2.0, parts=(noise,))
    assert ranked([noise, known], time_known=True)[0] is noise
    assert ranked([noise, known], time_known=False)[0] is known


def test_what_inductor_sets_for_itself_is_no_other_environment() -> None:
    one = run(("aten::mm", "a", 10, 30))

    def at(**variables: str) -> LoadedRun:
        return replace(one, manifest=Manifest(environment=Environment(variables=variables)))

    assert surroundings(at(), at(TRITON_CACHE_DIR="/cache")).why == ()
    assert len(surroundings(at(TRITON_CACHE_DIR="/a"), at(TRITON_CACHE_DIR="/b")).why) == 1
    assert len(surroundings(at(), at(OMP_NUM_THREADS="1")).why) == 1


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (2.0, ()),
        (None, ()),
        (7.84, ("the machine was busy when the new one was recorded: a load of 7.8 on 2 cores",)),
    ],
)
def test_a_machine_that_had_more_to_do_than_cores_is_named(load: float | None, why: tuple[str, ...]) -> None:
    one = run(("aten::mm", "a", 10, 30))
    base, new = (
        replace(one, manifest=Manifest(environment=Environment(cpu_count=2, load_average=at)))
        for at in (1.0, load)
    )
    assert surroundings(base, new).why == why


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (({"power_limit_w": 700.0}, {"power_limit_w": 350.0}), ("a power cap of 700 and 350 W",)),
        (({"power_limit_w": 700.0}, {"power_limit_w": 700.0}), ()),
        (({"power_limit_w": 700.0}, {}), ()),
        (
            ({"application_clock_mhz": 1980}, {"application_clock_mhz": 1410}),
            ("application clocks of 1,980 and 1,410 MHz",),
        ),
        (({"max_sm_clock_mhz": 1980}, {"max_sm_clock_mhz": 1980, "sm_clock_mhz": 400}), ()),
    ],
)
def test_what_a_device_was_allowed_stands_first(
    limits: tuple[dict[str, Any], dict[str, Any]], why: tuple[str, ...]
) -> None:
    one = run(("aten::mm", "a", 10, 30))
    base, new = (
        replace(one, manifest=Manifest(ranks=(RankRecord(rank=0, clocks=(at,)),)))
        for at in (ClockSample(device=0, time_ns=1, moment="begin", **limit) for limit in limits)
    )
    found = surroundings(base, new)
    assert (found.comparability, found.why) == ("limited" if why else "good", why)


def on_host(loader_us: float, *, line: int = 3, stacks: bool = True) -> LoadedRun:
    """A step of 100 µs and the loader's: an op of 40 below the program's ``load``, whose own time differs."""
    frames = [("python_function", f"train.py({line}): load", 10.0, 40 + loader_us)] if stacks else []
    events = [host(name, 1000 + start, us, category) for category, name, start, us in frames]
    return LoadedRun((trace(step(1, 1000, 100 + loader_us), host("aten::mm", 1012, 40), *events),))


def test_time_outside_of_ops_is_of_the_program_s_functions_whatever_their_line() -> None:
    found = difference([on_host(20)], [on_host(30, line=9)])
    (one,) = found.changes
    assert (one.name, one.what, one.source) == ("outside of ops: load (train.py)", "more", "train.py:9")
    assert one.delta_us == pytest.approx(10)


def lined(*ops: tuple[str, int, float]) -> LoadedRun:
    """A step of ops, each called at a line of ``train.py`` and of so many µs."""
    events = [step(1, 1000, STEP)]
    for place, (op, line, us) in enumerate(ops):
        at = 1010.0 + 20 * place
        events += [host(f"train.py({line}): train", at, us + 2, "python_function"), host(op, at + 1, us)]
    return LoadedRun((trace(*events),))


def test_a_line_that_an_edit_above_it_shifted_is_one_line() -> None:
    base = lined(("aten::mm", 20, 8), ("aten::sin", 21, 6), ("aten::cos", 22, 4))
    new = lined(("aten::tril", 20, 5), ("aten::mm", 22, 9), ("aten::cos", 23, 4))
    assert {row.name: (row.base_us, row.new_us) for row in difference([base], [new]).by["line"]} == {
        "train.py:20": (0, 5),
        "train.py:21": (6, 0),
        "train.py:20 → 22": (8, 9),
        "train.py:22 → 23": (4, 4),
    }


def test_functions_that_only_one_recording_knows_are_no_difference() -> None:
    found = compared(on_host(20, stacks=False), on_host(30))
    assert {name: change.delta_us for name, change in found.items()} == pytest.approx({"outside of ops": 10})


def test_where_the_time_cannot_be_told_what_ran_stands_before_what_took_longer() -> None:
    slower = Change(kind="op", what="slower", name="aten::mm", delta_us=90)
    added = Change(kind="op", what="added", name="aten::cat", delta_us=2)
    counted = Change(kind="sync", what="added", name="1 synchronization", delta_us=1, parts=(added,))
    assert ranked([slower, added, counted], time_known=False) == [counted, added, slower]
    assert ranked([slower, added, counted]) == [slower, added, counted]


def test_work_launched_before_the_first_recorded_step_is_of_none() -> None:
    """The host runs ahead: two kernels of an earlier step still run when the first recorded one begins."""
    events: list[dict[str, Any]] = [kernel("old", 1000, 50, 901), kernel("old", 1050, 50, 902)]
    for number in range(3):
        begin = 1000.0 + number * STEP
        events += [
            step(number, begin, STEP),
            host("aten::mm", begin + 1, 4),
            call("cudaLaunchKernel", begin + 2, 2, number + 1),
            kernel("a", begin + 110, 60, number + 1),
        ]
    found = own(LoadedRun((trace(*events),)))
    assert dict(found.launches.select("name", "launches").iter_rows()) == {"a": 1.0}


@pytest.mark.parametrize(
    ("command", "comparability", "why"),
    [
        (("python", "a/train.py", "--batch", "512"), "limited", "they were run with other arguments"),
        (
            ("python", "other.py", "--batch", "256"),
            "none",
            "they are different programs: train.py and other.py",
        ),
        (("python", "b/train.py", "--batch", "256"), "good", None),
    ],
)
def test_other_arguments_limit_a_comparison_and_another_program_forbids_it(
    command: tuple[str, ...], comparability: str, why: str | None
) -> None:
    one = run(("aten::mm", "a", 10, 30))
    sides = [
        replace(one, manifest=Manifest(command=words))
        for words in (("python", "train.py", "--batch", "256"), command)
    ]
    found = surroundings(*sides)
    assert found.comparability == comparability
    assert found.why[0].startswith(why) if why else not found.why
    gates = judged(difference([sides[0]], [sides[1]]), [parse("launches > 0"), parse("step_time > 3%")])
    assert [gate.known for gate in gates] == 2 * [comparability != "none"]


def test_other_shapes_are_said_first(tmp_path: Path) -> None:
    def of(batch: int, comma: str = ",") -> LoadedRun:
        events = [step(0, 1000, STEP), host("aten::mm", 1001, 4, **{"Input Dims": [[batch, 8], [8, 8]]})]
        events += [call("cudaLaunchKernel", 1002, 2, 1), kernel("a", 1010, 30, 1)]
        for number, op in enumerate(("add_", "mul_", "sqrt_"), 2):  # an optimizer's: of parameters
            at = 1000 + 10 * number
            events += [host(f"aten::{op}", at, 4, **{"Input Dims": [[8, 8]]})]
            events += [call("cudaLaunchKernel", at + 1, 2, number), kernel("b", 1040 + 5 * number, 3, number)]
        path = tmp_path / f"{batch}{len(comma)}.json"
        path.write_text(json.dumps({"traceEvents": events}, separators=(comma, ":")))
        return load(path)

    found = difference([of(256)], [of(512)])
    assert found.surroundings.comparability == "limited"
    assert "other shapes, as of aten::mm: [[256" in found.surroundings.why[0]
    assert difference([of(256)], [of(256, ", ")]).surroundings.comparability == "good", "they are written so"


def test_what_other_work_no_longer_hides_is_said_so() -> None:
    """A kernel on another stream has no time of its own until the one above it ends sooner."""
    hidden = compared(
        run(("aten::mm", "long", 10, 60), ("aten::sin", "under", 20, 10)),
        run(("aten::mm", "long", 10, 5), ("aten::sin", "under", 20, 10)),
    )["under"]
    assert did(hidden) == "no longer overlapped by other work: 0 µs → 10.0 µs of its own each"


def test_a_failed_gate_names_what_is_counted() -> None:
    """More waits, and more of another kernel: each gate names its own."""
    base = run(("aten::mm", "a", 10, 10))
    new = run(("aten::mm", "a", 10, 10), ("aten::sin", "b", 30, 5), ("aten::sin", "b", 40, 5), waits=5)
    found = difference([base], [new])
    gates = {
        gate.name: gate
        for gate in judged(found, [parse(f"{name} > 0") for name in ("launches", "syncs", "ops")])
    }
    assert gates["launches"].culprit == "b, 0 → 2 per step, called by aten::sin"
    assert gates["syncs"].culprit == "aten::item, 0 → 1 per step"
    assert gates["ops"].culprit == "aten::sin, 0 → 2 per step"


def test_what_is_called_more_often_is_named_at_the_line_that_calls_it_more_often() -> None:
    """The first call is at a line that has not changed; the new ones are below it."""
    base = lined(("aten::to", 10, 3), ("aten::mm", 11, 5))
    new = lined(("aten::to", 10, 3), ("aten::mm", 11, 5), ("aten::to", 12, 3))
    (more,) = (change for change in difference([base], [new]).changes if change.name == "aten::to")
    assert (more.what, more.source) == ("more often", "train.py:12")
    (less,) = (change for change in difference([new], [base]).changes if change.name == "aten::to")
    assert (less.what, less.source) == ("less often", "train.py:12")
    (gate,) = judged(difference([base], [new]), [parse("ops > 0")])
    assert (gate.culprit, gate.source) == ("aten::to, 1 → 2 per step", "train.py:12")


def test_a_culprit_s_line_is_the_one_that_grew_though_lines_shifted() -> None:
    base = lined(("aten::mm", 10, 5), ("aten::to", 11, 3))
    new = lined(("aten::to", 10, 3), ("aten::mm", 11, 5), ("aten::to", 12, 3))
    (gate,) = judged(difference([base], [new]), [parse("ops > 0")])
    assert gate.source == "train.py:10"


def test_lines_that_one_step_noted_name_what_changed_too() -> None:
    """As recorded by default: without Python stacks, but with one step that notes lines."""

    def of(*ops: tuple[str, str]) -> LoadedRun:
        events = [host(op, 1010 + 10 * place, 5) for place, (op, _) in enumerate(ops)]
        return LoadedRun((trace(step(1, 1000, STEP), *events),), lines={0: noted(*ops)})

    base = of(("aten::mm", "train.py(3): step"), ("aten::add", "train.py(4): step"))
    new = of(
        ("aten::mm", "train.py(3): step"),
        ("aten::add", "train.py(4): step"),
        ("aten::sin", "train.py(5): step"),
    )
    found = difference([base], [new])
    (added,) = (change for change in found.changes if change.name == "aten::sin")
    assert added.source == "train.py:5"
    assert [row.name for row in found.by["line"]] == ["train.py:5", "train.py:3", "train.py:4"]
    (gate,) = judged(found, [parse("ops > 0")])
    assert gate.source == "train.py:5"


def test_a_baseline_names_all_lines_of_what_several_lines_call() -> None:
    def culprit(*ops: tuple[str, int, float]) -> tuple[str, str | None]:
        gate = next(
            one for one in baseline.checked(lined(*ops), kept, [parse("ops > 0")]) if one.name == "ops"
        )
        return gate.culprit, gate.source

    kept = baseline.of(lined(("aten::to", 10, 3)))
    assert culprit(("aten::to", 10, 3), ("aten::to", 12, 3)) == (
        "aten::to, 1 → 2 per step, called at train.py:10, train.py:12",
        None,
    )
    assert culprit(("aten::to", 10, 3), ("aten::to", 10, 3)) == ("aten::to, 1 → 2 per step", "train.py:10")
    assert culprit(("aten::to", 10, 3), ("aten::sin", 12, 3)) == ("aten::sin, 0 → 1 per step", "train.py:12")


def test_what_grew_in_recordings_without_steps_is_of_all_that_was_recorded() -> None:
    def of(*ops: str) -> LoadedRun:
        return LoadedRun((trace(*(host(op, 1000 + 10 * at, 5) for at, op in enumerate(ops))),))

    (gate,) = judged(difference([of("aten::mm")], [of("aten::mm", "aten::sin")]), [parse("ops > 0")])
    assert gate.culprit == "aten::sin, 0 → 1 in all"
