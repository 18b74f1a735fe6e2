"""What waiting for data is worth, where workers need cores of their own, and what hides behind it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import polars as pl
import pytest

from kinetoscope.analysis.replay.change import without_host
from kinetoscope.findings import savings
from kinetoscope.findings.ledger import settle
from kinetoscope.findings.model import Finding
from kinetoscope.findings.rank_view import RankView, views
from kinetoscope.findings.rules.data_loading_stall import find
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings, TimedSteps
from kinetoscope.recording.whole_run import Node, SampledPlace, WholeRun
from kinetoscope.sources.run import LoadedRun
from loading import Loop, recording
from traces import host, step, trace


def found(cores: int, workers: int) -> list[Finding]:
    before = TimedSteps(step_s=(1e-3,) * 20, data_s=(4e-4,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, loader_workers=workers))
    steps = [step(i, 1000 * i, 1000) for i in range(3)]
    manifest = Manifest(ranks=(record,), environment=Environment(cpu_count=cores))
    (view,) = views(LoadedRun((trace(*steps, host("aten::mm", 500, 400)),), manifest))
    return list(find(view))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("cores", "saved_us"), [(1, None), (2, 200), (4, 300), (0, 400)])
def test_on_a_cpu_workers_take_turns_with_the_step(cores: int, workers: int, saved_us: float | None) -> None:
    promised = [one.saving.us for one in found(cores, workers)]
    assert promised == ([] if saved_us is None else [pytest.approx(saved_us)])


@pytest.mark.parametrize(("between_us", "picks"), [(1.0, True), (9.0, False)])
def test_samples_that_are_picked_one_by_one_out_of_tensors_call_for_one_index(
    between_us: float, picks: bool
) -> None:
    """Where Python does little but call the ops that pick; workers would do the same, and send the batch."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events, length = [step(i, 2000 * i, 2000) for i in range(3)], 100 * (1 + between_us) + 20
    for start in (0, 2000, 4000):
        events.append(host(loader, start, length, "user_annotation"))
        events += [host("aten::select", start + (1 + between_us) * i, 1) for i in range(100)]
        events.append(host("aten::stack", start + length - 20, 18))
        events.append(host("aten::mm", start + length + 10, 400))
    before = TimedSteps(step_s=(2e-3,) * 20, data_s=(length / 1e6,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, loader_workers=0))
    (view,) = views(
        LoadedRun((trace(*events),), Manifest(ranks=(record,), environment=Environment(cpu_count=2)))
    )
    (one,) = find(view)
    assert ("one index" in one.advice) == picks
    assert ("BatchSampler" in (one.snippet or "")) == picks
    # What is copied into the batch is copied still; with workers, it is half on two cores.
    assert one.saving.us == pytest.approx(length - 18 if picks else length / 2, rel=0.01)


@pytest.mark.parametrize(
    ("cores", "advice"),
    [(4, "no cores for more"), (5, "nor would 5, as many as there are cores"), (16, "try 7,")],
)
def test_no_more_workers_are_advised_than_there_are_cores(cores: int, advice: str) -> None:
    (one,) = found(cores, 4)
    assert advice in one.advice


def test_where_a_library_makes_the_loader_its_own_arguments_are_advised() -> None:
    file = "/env/lib/python3.11/site-packages/transformers/trainer.py"
    places = (SampledPlace("/home/a/train.py", "<module>", 1), SampledPlace(file, "Trainer.train", 900))
    nodes = tuple(Node(number - 1, number, 0, (0, 0, 1, 0), (0, 0, 9, 0), 1, 1.0) for number in range(2))
    before = TimedSteps(step_s=(1e-3,) * 20, data_s=(4e-4,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, loader_workers=0))
    run = LoadedRun(
        (trace(*(step(i, 1000 * i, 1000) for i in range(3)), host("aten::mm", 500, 400)),),
        Manifest(ranks=(record,)),
        watched={0: WholeRun(places=places, nodes=nodes)},
    )
    (view,) = views(run)
    (one,) = find(view)
    assert one.snippet == "TrainingArguments(dataloader_num_workers=1, dataloader_persistent_workers=True)"


# Two workers make a batch each 1000 µs; the step alone takes 201, the device 150 of it.
LATE = Loop(workers=2, batch_us=lambda _: 2_000, kernel_us=150)


def view_of(loop: Loop, cores: int = 64, slower: float = 1.0) -> RankView:
    (view,) = views(recording(loop, replace(loop, slower=slower), cores))
    return view


def shortened(view: RankView, name: str) -> Finding:
    ops = view.trace.host_events.filter(pl.col("name").cast(pl.String) == f"aten::{name}")
    return Finding(
        title=name,
        saving=savings.of(view, without_host(ops), name),
        evidence=[],
        advice="",
        rule=name,
        subject=name,
    )


def test_the_loader_that_binds_stands_first_and_what_hides_behind_it_saves_nothing_alone() -> None:
    view = view_of(LATE, slower=1.5)
    (stall,) = find(view)
    assert stall.saving.us == pytest.approx(799, rel=0.01)
    assert "try 10," in stall.advice
    assert "its loader sets the pace" in stall.title
    others = [shortened(view, name) for name in ("before", "after")]
    # On top of the loader they save what is not hidden behind the device.
    assert [one.saving.us for one in others] == [pytest.approx(50, abs=5)] * 2
    first, second, *_ = settle(view.run, [*others, msgspec.structs.replace(stall, rule="data-loading-stall")])
    assert first.rule == "data-loading-stall"
    assert first.remaining.saving_us == first.saving.us
    assert second.saving.us == pytest.approx(0)
    assert second.remaining.saving_us == pytest.approx(50, abs=5)
    assert second.remaining.also is None
    assert "until then hidden" in second.saving.basis


def test_without_the_loaders_finding_nothing_behind_it_is_promised() -> None:
    view = view_of(LATE)
    settled = settle(view.run, [shortened(view, name) for name in ("before", "after")])
    assert [one.remaining.saving_us for one in settled] == [pytest.approx(0)] * 2


def test_where_the_cores_do_not_suffice_more_than_workers_and_less_than_all_waiting_is_promised() -> None:
    (stall,) = find(view_of(LATE, cores=4))
    # A batch and the rest of a step are 2201 µs of work, on four cores; without waiting a step takes 201 µs.
    by_workers, all_of_it = 1_000 - 2_201 / 4, 799
    assert stall.saving.us == pytest.approx((by_workers + all_of_it) / 2, rel=0.02)
    assert "nor would 4, as many as there are cores: do less work per sample" in stall.advice
    assert "With 4 workers alone a step takes 550 µs" in stall.advice


def test_where_all_cores_have_workers_cheaper_batches_are_advised() -> None:
    (stall,) = find(view_of(LATE, cores=2))
    assert "no cores for more: do less work per sample" in stall.advice
    assert stall.saving.us == pytest.approx(799, rel=0.01)


def test_taking_over_a_batch_that_is_ready_calls_for_no_workers() -> None:
    loop = Loop(workers=2, batch_us=lambda _: 100, handover_us=15, kernel_us=20, syncs=True)
    for copies in (False, True):
        (one,) = find(view_of(replace(loop, copies=copies)))
        assert one.title.startswith("Taking over a batch that is ready takes 15")
        assert "More workers than the 2 workers bring nothing" in one.advice
        assert one.snippet is None
        assert ("pin_memory=True" in one.advice) == copies
        # Only a thread that unpacks and pins batches is known to take it off the loop.
        assert one.saving.us == (pytest.approx(15, rel=0.05) if copies else 0)
        assert one.saving.most_us or copies


def test_taking_over_a_batch_behind_device_work_saves_nothing() -> None:
    loop = Loop(workers=2, batch_us=lambda _: 100, handover_us=15, kernel_us=600)
    assert not list(find(view_of(loop)))


def test_a_loader_without_workers_saves_no_more_than_the_program_waits_for_it() -> None:
    """The recorded steps waited for more batches than the timed ones, and did less else."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [step(i, 1000 * i, 1000) for i in range(3)]
    events += [
        host(loader, start + at, 300, "user_annotation") for start in (0, 1000, 2000) for at in (0, 400)
    ]
    before = TimedSteps(step_s=(4e-3,) * 20, data_s=(5e-4,) * 20)
    record = RankRecord(rank=0, steps=StepTimings(before=before, loader_workers=0))
    manifest = Manifest(ranks=(record,), environment=Environment(cpu_count=1000))
    (view,) = views(LoadedRun((trace(*events, host("aten::mm", 710, 200)),), manifest))
    (one,) = find(view)
    assert "waits 500 µs" in one.title
    assert one.saving.us == pytest.approx(499.5, rel=0.01)
