"""Loops over what could be computed at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import traces
from eager import NODE, Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import looped_ops, results_on_host, split_batches
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

STEPS, EACH = 3, 6
SOURCE = """
model, data, total = made()
for batch in data:
    for x in batch:
        total = total + loss(x)
    total.backward()
"""


def training(
    folder: Path,
    source: str = SOURCE,
    passes: int = 10,
    us: float = 2.0,
    learns: bool = False,
    node_us: float = 0.0,
    reads: int = 0,
    way: str = "Memcpy DtoH (Device -> Pageable)",
    differs: bool = False,
    on_cpu: bool = False,
    scored_us: float = 0.0,
    op: str = "aten::mul",
    grid: int = 132,
) -> RankView:
    """Steps with a loop, of which each pass launches six kernels, in 122 µs of the host; the backward pass
    does as many. The first ``reads`` ops of the loop wait for the device. The last step ``differs`` in what
    its passes compute. Of what is ``scored``, 4 MB are read before, in 500 µs. With ``node_us`` the op after
    the loop has a node of autograd that takes so long, and ops of the loop, which have none, its number."""
    program, lines = Eager(), list[tuple[str, str]]()
    for step in range(STEPS):
        for _ in range(passes):
            other = differs and step == STEPS - 1
            program.note("aten::narrow" if other else "aten::select")
            for number in range(EACH):
                read = {"kernel": way, "bytes": 4} if number < reads else {}
                name = "aten::item" if number < reads else op
                name = {"aten::item": "aten::is_nonzero", "aten::mul": "aten::add"}[name] if other else name
                sequence = program.number if learns else 1000 + step if node_us else None
                program.run(name, us=us, grid=grid, sequence=sequence, **read)
        if learns:
            for number in reversed(range(program.number - passes * EACH, program.number)):
                program.backward("MulBackward0", "aten::mul", us=us, sequence=number)
        after = 1000 + step if node_us else None
        # Two loops, between which the device works.
        program.run("aten::sum", us=100 if differs else us, sequence=after)
        if node_us:
            numbered = {"Sequence number": after, "Fwd thread id": 1}
            program.events.append(traces.host(f"{NODE}SumBackward0", program.at, node_us, tid=2, **numbered))
            program.at += node_us + 2
        if scored_us:
            program.run("aten::to", kernel="Memcpy DtoH (Device -> Pageable)", us=500, bytes=4 << 20)
            program.at = program.free + scored_us
            program.note("aten::set_")
        program.step()
        if step == 0:
            body = ["aten::item"] * reads + [op] * (EACH - reads)
            lines = [
                one
                for _ in range(passes)
                for one in (
                    ("aten::select", "train.py(4): <module>"),
                    *((name, "train.py(5): <module>") for name in body),
                )
            ]
    lines.append(("aten::sum", "train.py(6): <module>"))
    if scored_us:
        lines = [(op, line.replace("<module>", "ranks")) for op, line in lines]
        lines += [("aten::to", "train.py(7): ranks"), ("aten::set_", "train.py(8): ranks")]
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": source})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    if on_cpu:
        program.events = traces.on_cpu(program.events)
    trace = program.view().trace
    run = LoadedRun((trace,), kept, folder=folder, lines={0: traces.noted(*lines)})
    return RankView(run, trace)


def test_a_loop_of_which_all_passes_could_be_one(tmp_path: Path) -> None:
    (finding,) = looped_ops.find(training(tmp_path))
    assert finding.title == (
        "The loop at train.py:4 makes 10 passes per step of 6 small kernels each, none of which needs "
        "another's result"
    )
    assert finding.affected_us == pytest.approx(10 * EACH * 2)
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * 20), rel=0.03)
    assert not finding.saving.condition
    assert finding.source == "train.py:4"


def test_what_its_passes_cost_in_the_backward_pass_goes_as_well(tmp_path: Path) -> None:
    view = training(tmp_path, learns=True)
    (finding,) = looped_ops.find(view)
    assert finding.saving.us == pytest.approx(9 * (2 + 2 * EACH * 20), rel=0.05)
    # As much of each step: the first one's as well as the last one's.
    marks = view.trace.steps.select("start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    host = finding.saving.change.host.with_columns(lasts=pl.col("end_ns") - pl.col("start_ns"))
    each = [host.filter(pl.col("start_ns").is_between(*mark))["lasts"].sum() for mark in marks.rows()]
    assert each == pytest.approx([each[0]] * STEPS, rel=0.05)


def test_the_backward_pass_of_an_op_after_the_loop_stays(tmp_path: Path) -> None:
    """Ops without a node, as those that make a batch, have the number of the next node that is made."""
    (alone,) = looped_ops.find(training(tmp_path, on_cpu=True))
    (finding,) = looped_ops.find(training(tmp_path, on_cpu=True, node_us=200))
    assert finding.saving.us == pytest.approx(alone.saving.us, rel=0.01)


WORDS = """
decoder, state, word = made()
for answers in loader:
    for answer in answers:
        chances, state = decoder(word, state)
        word = answer
"""


def test_a_decoder_is_given_all_words_of_its_teacher_at_once(tmp_path: Path) -> None:
    view = training(tmp_path, source=WORDS, op="aten::gru", learns=True)
    (finding,) = looped_ops.find(view)
    assert finding.title.endswith("none of which needs another's result but a recurrent net's state")
    assert finding.saving.us == pytest.approx(9 * (2 + 2 * EACH * 20), rel=0.05)
    assert "the whole sequence in one call" in finding.advice
    chosen = training(tmp_path, source=WORDS.replace("= answer", "= chances"), op="aten::gru", learns=True)
    assert not list(looped_ops.find(chosen))


def test_kernels_compute_what_they_did(tmp_path: Path) -> None:
    """Of 19 µs each, of which the host hides as much as it takes, 3 µs go with a launch."""
    (finding,) = looped_ops.find(training(tmp_path, us=19))
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * 20) - 9 * EACH * (19 - 3), rel=0.1)


def test_kernels_of_one_block_run_next_to_each_other(tmp_path: Path) -> None:
    (finding,) = looped_ops.find(training(tmp_path, us=19, grid=1))
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * 20), rel=0.03)


TABLES = """
for row in data:
    for table in tables:
        weights.append(table(row))
    for table in wide_tables:
        vectors.append(table(row))
    loss(weights, vectors).backward()
"""


def lookups(folder: Path, source: str = TABLES, times: int = 60) -> RankView:
    """Steps that look up so many tables in each of two loops, in 20 µs of the host each, and as long in the
    backward pass; then gradients of these and of 20 other weights are added, in 1 µs each, and an optimizer
    updates all in 400 µs."""
    program = Eager()
    for _ in range(STEPS):
        first = program.number
        for _ in range(2 * times):
            program.note("aten::select")
            program.run("aten::embedding", "aten::gather", us=2, sequence=program.number)
        program.run("aten::mean", us=2)
        for number in reversed(range(first, first + 2 * times)):
            program.backward("EmbeddingBackward0", "aten::scatter", us=2, sequence=number)
        for _ in range(2 * times + 20):
            accumulates = f"{NODE}torch::autograd::AccumulateGrad"
            program.events.append(traces.host(accumulates, program.at, 1, tid=2))
            program.at += 2
        program.events.append(traces.host("Optimizer.step#SGD.step", program.at, 400, "user_annotation"))
        program.at += 400
        program.step()
    lines = [
        (op, f"train.py({line + at}): <module>")
        for line in [3] * times + [5] * times
        for at, op in enumerate(("aten::select", "aten::embedding aten::gather"))
    ]
    lines.append(("aten::mean", "train.py(7): <module>"))
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": source})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    trace = program.view().trace
    return RankView(LoadedRun((trace,), kept, folder=folder, lines={0: traces.noted(*lines)}), trace)


def test_tables_that_are_looked_up_in_two_loops_are_one_for_the_optimizer_as_well(tmp_path: Path) -> None:
    (finding,) = looped_ops.find(lookups(tmp_path))
    assert finding.title == (
        "The loops at train.py:3 and 5 make 120 passes per step of 1 small kernel each, none of which needs "
        "another's result"
    )
    assert "one table of all" in finding.advice
    of_weights = 118 / 140 * (400 + 140)
    assert finding.saving.us == pytest.approx(118 * (2 + 20 + 20) + of_weights, rel=0.05)


def test_one_table_that_is_looked_up_for_each_row_is_one_already(tmp_path: Path) -> None:
    source = TABLES.replace("for table in tables", "for one in row").replace("for table in", "for one in")
    (finding,) = looped_ops.find(lookups(tmp_path, source.replace("table(row)", "table(one)")))
    assert "table" not in finding.advice
    assert finding.saving.us == pytest.approx(118 * (2 + 20 + 20), rel=0.05)


def test_a_loop_that_reads_is_told_so_once(tmp_path: Path) -> None:
    view = training(tmp_path, reads=1)
    (finding,) = looped_ops.find(view)
    assert list(results_on_host.find(view)) == []
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * 20), rel=0.03)
    unknown = training(tmp_path, source="", reads=1)
    assert [found.subject for found in results_on_host.find(unknown)] == ["loop"]


def test_a_loop_that_writes_numbers_into_a_tensor_of_the_device_could_be_one(tmp_path: Path) -> None:
    view = training(tmp_path, reads=EACH, way="Memcpy HtoD (Pageable -> Device)")
    (finding,) = looped_ops.find(view)
    assert "10 passes per step of 6 small copies each" in finding.title
    assert "write all numbers by one index" in finding.advice
    assert "Read" not in finding.advice
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * 20), rel=0.03)


def test_a_loop_that_is_known_in_some_steps_alone_reads_in_all(tmp_path: Path) -> None:
    view = training(tmp_path, passes=20, reads=1, differs=True)
    (finding,) = results_on_host.find(view)
    assert list(looped_ops.find(view))
    (unknown,) = results_on_host.find(training(tmp_path, source="", passes=20, reads=1, differs=True))
    assert finding.saving.us == unknown.saving.us


RANKS = """
def ranks(scores, others):

    for i in range(len(scores)):
        scores[i, others[i]] = 0
    order = torch.argsort({scores}, 1)
    order = order.cpu()
    return found(order)
"""


@pytest.mark.parametrize(("scores", "fills"), [("scores", True), ("others", False)])
def test_a_loop_that_fills_what_is_scored_goes_with_the_scoring(
    tmp_path: Path, scores: str, fills: bool
) -> None:
    view = training(tmp_path, RANKS.format(scores=scores), scored_us=1500)
    (loop,), (scoring,) = looped_ops.find(view), results_on_host.find(view)
    assert scoring.saving.us == pytest.approx(1500 + 500 + fills * loop.saving.us, rel=0.03)
    assert ("the loop at train.py:4" in scoring.advice) == fills


@pytest.mark.parametrize(
    "program",
    [
        {"source": SOURCE.replace("loss(x)", "loss(x, total)")},  # each needs the one before
        {"source": ""},  # which is not known
        {"passes": 7},
        {"us": 25.0},  # the device sets the pace
    ],
)
def test_loops_that_stay(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(looped_ops.find(training(tmp_path, **program)))


def test_on_a_cpu_passes_cost_what_is_around_their_ops(tmp_path: Path) -> None:
    (finding,) = looped_ops.find(training(tmp_path, on_cpu=True))
    # Of nine passes 2 µs for each view, 2 µs between ops, and 3 µs of each op.
    assert finding.saving.us == pytest.approx(9 * (2 + EACH * (2 + 3)), rel=0.05)
    of_parameters = SOURCE.replace("in batch", "in model.parameters()")
    assert not list(looped_ops.find(training(tmp_path, of_parameters, on_cpu=True)))
    assert list(looped_ops.find(training(tmp_path, of_parameters)))


VIEWS = """
for x, y in data:
    first = model(x)
    second = model(y)
    loss(first, second).backward()
"""
IN_A_NET = 30


def two_views(folder: Path, source: str = VIEWS, grid: int = 132, us: float = 2.0) -> RankView:
    """Steps that call a net of thirty kernels on two inputs, and go backward through both."""
    program = Eager()
    for _ in range(STEPS):
        begins = program.number + 1
        for number in range(2 * IN_A_NET):
            of_second = number >= IN_A_NET
            program.run("aten::mul", us=us, grid=grid if of_second else 132, sequence=program.number + 1)
        for sequence in reversed(range(begins, program.number + 1)):
            program.backward("MulBackward0", "aten::mul", us=us, sequence=sequence)
        program.run("aten::sum")
        program.step()
    ops = " ".join(["aten::mul"] * IN_A_NET)
    lines = [(f"Net/{ops}", f"train.py({line}): <module>") for line in (3, 4)]
    lines.append(("aten::sum", "train.py(5): <module>"))
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": source})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    trace = program.view().trace
    run = LoadedRun((trace,), kept, folder=folder, lines={0: traces.noted(*lines)})
    return RankView(run, trace)


def test_two_calls_of_one_net_could_be_one(tmp_path: Path) -> None:
    view = two_views(tmp_path)
    (finding,) = split_batches.find(view)
    assert finding.title == (
        "Net is called 2 times per step, with 30 kernels each time, and no call needs another's result"
    )
    assert finding.saving.us == pytest.approx(2 * IN_A_NET * 20, rel=0.05)
    assert finding.source == "train.py:3"
    assert not list(looped_ops.find(view))


@pytest.mark.parametrize(
    "program",
    [
        {"source": VIEWS.replace("model(y)", "model(first)")},
        {"grid": 264},  # of another size
        {"us": 25.0},  # the device sets the pace
    ],
)
def test_calls_that_stay(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(split_batches.find(two_views(tmp_path, **program)))
