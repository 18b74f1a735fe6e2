"""Each weakness of a recording is seen, named and weighed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kinetoscope.analysis.health.rows import Note
from kinetoscope.analysis.health.verdict import health
from kinetoscope.recording.manifest import Environment, Manifest, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.damage import described
from kinetoscope.trace.model import Trace
from kinetoscope.trace.read import read
from sampled import Run
from traces import event, trace

Make = Callable[..., Trace]
Event = dict[str, Any]


def kernel(
    start: float, duration: float, correlation: int, stream: int = 7, category: str = "kernel"
) -> Event:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return {
        "ph": "X",
        "cat": category,
        "name": "gemm",
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def launch(correlation: int, start: float) -> Event:
    return event("cuda_runtime", "cudaLaunchKernel", start, 2.5, correlation=correlation)


def step(number: int, start: float, duration: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, duration)


def sound(launches: int = 100) -> list[Event]:
    """A recording of one step in which nothing is amiss."""
    pairs = [(launch(i + 1, 10 * i + 1), kernel(10 * i + 5, 4.5, i + 1)) for i in range(launches)]
    return [step(1, 0, 10 * launches), *(e for pair in pairs for e in pair)]


def notes(trace: Trace) -> dict[str, Note]:
    return {note.code: note for note in health(LoadedRun((trace,))).notes}


def test_a_sound_recording_is_good_and_has_no_note(trace_of: Make) -> None:
    found = health(LoadedRun((trace_of(*sound()),)))
    assert (found.verdict, found.notes) == ("good", [])


def test_device_work_without_a_launch(trace_of: Make) -> None:
    note = notes(trace_of(kernel(1, 50, 900), *sound()))["device-work-without-launch"]
    assert note.share_of_device_time == pytest.approx(50 / 500)
    assert note.gravity == "degraded"
    assert "launched before recording began" in note.text
    none_joined = notes(trace_of(*(one for one in sound() if one["cat"] != "cuda_runtime")))
    assert "without a recorded launch: they count" in none_joined["device-work-without-launch"].text
    few = notes(trace_of(kernel(1, 0.5, 900), *sound()))["device-work-without-launch"]
    assert few.gravity == "info"


def test_launches_without_a_kernel(trace_of: Make) -> None:
    whole = [launch(1000 + i, 2000 + i * 5) for i in range(10)]
    found = notes(trace_of(*sound(), *whole))["launches-without-kernel"]
    assert (found.gravity, "10 of 110" in found.text) == ("unreliable", True)


def test_launches_into_a_captured_graph_are_not_missing(trace_of: Make) -> None:
    capture = [
        event("cuda_runtime", "cudaStreamBeginCapture", 2000, 1),
        launch(1000, 2005),
        event("cuda_runtime", "cudaStreamEndCapture", 2010, 1),
    ]
    assert notes(trace_of(*sound(), *capture)) == {}


def test_kernels_before_their_launch(trace_of: Make) -> None:
    found = notes(trace_of(*sound(), launch(1000, 980), kernel(900, 1.5, 1000, stream=8)))["early-kernels"]
    assert (found.gravity, "80.0 µs" in found.text) == ("degraded", True)


def test_the_first_work_starts_long_after_its_launch(trace_of: Make) -> None:
    """The device seems idle for 600 of 1000 µs, though its first work had been launched: it was not idle."""
    late = [step(1, 0, 1000), launch(1, 1), kernel(603.5, 300, 1), launch(2, 10), kernel(910, 5, 2)]
    note = notes(trace_of(*late))["unseen-work-before"]
    assert note.gravity == "degraded"
    assert "60.0% of the window" in note.text
    # While another stream works, the device is not idle; nor while the launching call itself takes long.
    other = [launch(3, 1), kernel(3.5, 600, 3, stream=8)]
    assert "unseen-work-before" not in notes(trace_of(*late, *other))
    slow = event("cuda_runtime", "cudaLaunchKernel", 1, 602, correlation=1)
    assert "unseen-work-before" not in notes(trace_of(late[0], slow, *late[2:]))


def test_impossible_duration(trace_of: Make) -> None:
    found = notes(trace_of(*sound(), launch(1000, 990), kernel(995, 1e9, 1000, stream=8)))[
        "impossible-duration"
    ]
    assert found.gravity == "unreliable"
    assert found.share_of_device_time > 0.99


def test_empty_steps_among_full_ones_but_not_the_sliver_at_the_end(trace_of: Make) -> None:
    found = notes(trace_of(*sound(), step(2, 1000, 900)))["empty-steps"]
    assert (found.gravity, "ProfilerStep#2" in found.text) == ("degraded", True)
    assert notes(trace_of(*sound(), step(2, 1000, 5))) == {}


def test_the_profilers_own_overhead_inside_the_window(trace_of: Make) -> None:
    overhead = event("overhead", "Activity Buffer Request", 200, 100, tid=9)
    assert notes(trace_of(*sound(), overhead))["profiler-overhead"].gravity == "degraded"
    assert "10.0%" in notes(trace_of(*sound(), overhead))["profiler-overhead"].text
    assert notes(trace_of(*sound(), {**overhead, "name": "Lazy Function Loading"})) == {}
    assert notes(trace_of(*sound(), {**overhead, "ts": 1500})) == {}  # after the steps


def test_overlap_in_one_stream(trace_of: Make) -> None:
    late = [e for i in range(3) for e in (launch(1000 + i, 990 + i), kernel(1000 + 9 * i, 9.5, 1000 + i))]
    found = notes(trace_of(*sound(), *late))["same-stream-overlap"]
    assert (found.gravity, found.text[0]) == ("info", "2")
    assert "programmatic dependent launch" in found.text


def test_mtia_is_no_blackwell_and_its_transfers_are_not_lost(trace_of: Make) -> None:
    """Units of an MTIA device overlap by design; nothing on the host launches a DMA request."""
    on_mtia = [
        {**e, "cat": {"kernel": "mtia_ccp_events", "cuda_runtime": "mtia_runtime"}.get(e["cat"], e["cat"])}
        for e in sound()
    ]
    transfers = [
        {**kernel(10 * i + 2, 4, 5000 + i, category="mtia_ccp_events"), "name": "dma_request"}
        for i in range(20)
    ]
    found = notes(trace_of(*on_mtia, *transfers))
    assert set(found) == {"same-stream-overlap"}
    assert "its units work side by side" in found["same-stream-overlap"].text


def test_kernels_of_unknown_families_are_named(trace_of: Make) -> None:
    strange = [{**kernel(10 * i + 5, 1.5, i + 1, 9), "name": name} for i, name in enumerate(["Zorp", "Blip"])]
    found = notes(trace_of(*sound()[:-4], launch(1, 1), launch(2, 11), *strange))["unknown-kernels"]
    assert found.gravity == "info"
    assert "Blip, Zorp" in found.text
    assert found.share_of_device_time == pytest.approx(3 / (98 * 4.5 + 3))


def test_times_in_whole_microseconds_are_a_coarse_clock(trace_of: Make) -> None:
    events = [{**e, "ts": int(e["ts"]), "dur": int(e["dur"]) or 1} for e in sound()]
    assert set(notes(trace_of(*events))) == {"coarse-clock"}


@pytest.mark.parametrize(
    ("events", "code", "gravity"),
    [
        ([event("cpu_op", "aten::add", 0, 5), step(1, 0, 9)], "no-device-events", "info"),
        ([event("cpu_op", "aten::cudnn_is_acceptable", 0, 5), step(1, 0, 9)], "no-device-events", "info"),
        ([event("cpu_op", "aten::cudnn_convolution", 0, 5)], "no-device-events", "unreliable"),
        ([step(1, 0, 9), launch(1, 3)], "no-device-events", "unreliable"),
        ([event("Trace", "PyTorch Profiler (0)", 0, 9)], "nothing-recorded", "unreliable"),
        ([kernel(0, 5.5, 1), kernel(9, 5.5, 2)], "no-host-events", "degraded"),
        ([launch(1, 0), kernel(5, 5.5, 1)], "no-steps", "info"),
    ],
)
def test_notes_say_what_was_not_recorded(
    trace_of: Make, events: list[Event], code: str, gravity: str
) -> None:
    assert notes(trace_of(*events))[code].gravity == gravity


@pytest.mark.parametrize(
    ("code", "count", "gravity"),
    [
        ("truncated", 1, "degraded"),
        ("bad-event", 50, "unreliable"),  # of 201
        ("bad-event", 1, "degraded"),
        ("invalid-utf8", 50, "degraded"),  # fixed, but a quarter of all
        ("invalid-utf8", 2, "info"),
        ("trailing-junk", 50, "info"),  # bytes
    ],
)
def test_damages_of_the_file(trace_of: Make, code: str, count: int, gravity: str) -> None:
    trace = trace_of(*sound())
    source = replace(trace.source, damages=described({code: count}), complete=False)
    found = notes(replace(trace, source=source))
    assert {key: note.gravity for key, note in found.items()} == {code: gravity}


def test_ranks_that_are_absent(trace_of: Make) -> None:
    trace = trace_of(*sound(), distributedInfo={"rank": 0, "world_size": 4})
    assert notes(trace)["ranks-absent"].text.startswith("1 of 4 ranks")


def test_how_much_profiling_inflated_a_step(trace_of: Make) -> None:
    timings = StepTimings(unprofiled_s=(0.0005, 0.0005, 0.0013077))  # 0.77 ms; recorded: 1 ms
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=timings),))
    (note,) = health(LoadedRun((trace_of(*sound()),), manifest)).notes
    assert (note.code, note.gravity, "+30%" in note.text) == ("profiling-inflation", "degraded", True)


def test_what_run_warned_of_weakens_the_report_as_well(trace_of: Make) -> None:
    why = "the recorded steps waited 0.4 ms each for the loader, those before 5.0 ms"
    manifest = Manifest(ranks=(RankRecord(rank=0, steps=StepTimings(notes=(why,))),))
    (note,) = health(LoadedRun((trace_of(*sound()),), manifest)).notes
    assert (note.gravity, note.text) == ("degraded", why)


@pytest.mark.parametrize(
    ("load", "slow_s", "gravity"),
    [(1.9, 0.004, None), (4.1, 0.0011, "info"), (4.1, 0.004, "degraded")],
)
def test_a_machine_that_others_use_weakens_uneven_steps(
    trace_of: Make, load: float, slow_s: float, gravity: str | None
) -> None:
    record = RankRecord(rank=0, steps=StepTimings(unprofiled_s=(0.001,) * 8 + (slow_s,) * 2))
    manifest = Manifest(ranks=(record,), environment=Environment(cpu_count=2, load_average=load))
    found = health(LoadedRun((trace_of(*sound()),), manifest)).notes
    assert [note.gravity for note in found if note.code == "busy-machine"] == ([gravity] if gravity else [])


def test_the_first_collective_waits_for_the_other_profilers(shared_data: Path) -> None:
    folder = shared_data / "public/param_v100_dlrm_8rank"
    traces = tuple(read(folder / f"rank{rank}.json.gz", rank=rank) for rank in range(8))
    found = {n.rank for n in health(LoadedRun(traces)).notes if n.code == "first-collective-skew"}
    assert found == {1, 3, 4, 5}  # the ranks whose first collective began milliseconds before the last rank's


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("h200/mm_64_warm_eager", "good"),
        ("h200/llama_generate_eager", "good"),
        ("h200/llama_train_compile", "degraded"),  # 6.5 % of device time was launched before the recording
        ("h200-dist/ddp_straggler_rank0", "degraded"),
        ("public/hta_a100_ws2_rank0_nccl_metadata", "good"),
        ("public/tl_mi300x_ddp_resnet18_train", "good"),
    ],
)
def test_verdicts_on_real_recordings(shared_data: Path, name: str, verdict: str) -> None:
    assert health(LoadedRun((read(shared_data / f"{name}.json.gz"),))).verdict == verdict


@pytest.mark.parametrize(
    ("found_by", "cold", "ending", "verdict", "said"),
    [
        ("optimizer", True, "signal: SIGKILL", "degraded", "(signal: SIGKILL) before its steps had settled"),
        ("optimizer", True, "ok", "degraded", "the program ended before its steps had settled"),
        ("optimizer", False, "exception: ValueError", "good", "after these steps had been recorded"),
        ("optimizer", False, "ok", "good", None),
        ("whole", True, "ok", "good", None),
        ("whole", True, "exception: ValueError", "degraded", "what it did until then"),
    ],
)
def test_what_was_recorded_of_a_program_that_ended_early_is_said(
    trace_of: Make, found_by: str, cold: bool, ending: str, verdict: str, said: str | None
) -> None:
    steps = StepTimings(found_by=found_by, cold=cold)
    record = RankRecord(rank=0, trace="trace/rank0.json", steps=steps, exit=ending)
    found = health(LoadedRun((trace_of(*sound()),), Manifest(ranks=(record,))))
    assert found.verdict == verdict
    assert [(said or "") in note.text for note in found.notes] == ([True] if said else [])


def test_steps_that_never_settled_are_said_to_be_so(trace_of: Make) -> None:
    steps = StepTimings(found_by="module", settled=False, warmup_s=(0.1, 0.3) * 4)
    record = RankRecord(rank=0, trace="trace/rank0.json", steps=steps)
    (note,) = health(LoadedRun((trace_of(*sound()),), Manifest(ranks=(record,)))).notes
    assert (note.code, note.gravity) == ("unsettled", "info")
    assert "not settled after 8 of them" in note.text


@pytest.mark.parametrize(
    ("spawned", "waited", "found_by", "said"),
    [
        (True, 60, "module", True),
        (True, 20, "module", False),
        (False, 60, "module", False),  # for a thread, or a process of another kind
        (True, 60, "request", False),  # for requests
    ],
)
def test_a_program_that_waits_for_processes_of_its_own_is_said_not_to_be_recorded_in_them(
    spawned: bool, waited: int, found_by: str, said: bool
) -> None:
    samples = Run().sample("before", "<module> 99 {waiting}", times=waited)
    samples.sample("timed", "<module> 105 evaluate 62 Net.forward 91", times=40)
    record = RankRecord(rank=0, spawned=spawned, steps=StepTimings(found_by=found_by))
    found = trace(event("cpu_op", "aten::mm", 0, 10))
    run = LoadedRun((found,), Manifest(ranks=(record,)), watched={0: samples.written()})
    texts = [note.text for note in health(run).notes if note.code == "other-processes"]
    assert bool(texts) == said
    assert all(text.startswith("the program waits for 60% of its time") for text in texts)


def test_a_later_phase_of_training_is_said_to_be_none_of_the_recorded_steps():
    step = "<module> 5 train 34 Net.forward 91", "<module> 5 train 36 {optimizer}"
    later = "<module> 6 tune 44 Net.forward 91", "<module> 6 tune 46 {optimizer}"
    samples = Run().ticked(step[1]).sample("timed", *step, times=40).sample("after", *later, times=60)
    record = RankRecord(rank=0, steps=StepTimings(found_by="optimizer", profiled_s=(0.03,) * 3))
    found = trace(event("cpu_op", "aten::mm", 0, 10))
    run = LoadedRun((found,), Manifest(ranks=(record,)), watched={0: samples.written()})
    (text,) = (note.text for note in health(run).notes if note.code == "phase-not-recorded")
    assert text.startswith("60% of the run after its setup is steps of tune (train.py:7), of which none was")
