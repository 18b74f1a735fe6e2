"""What the logs of the founding cases must tell, by name and number."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from kinetoscope.analysis.compiled.join import join
from kinetoscope.compilation import cache_keys
from kinetoscope.compilation.model import CompiledProgram
from kinetoscope.compilation.sources import load
from kinetoscope.document.collect.compilation import as_document, kernel_details
from kinetoscope.sources.run import load as load_profile


def logs(shared_data: Path, name: str) -> CompiledProgram:
    return load(shared_data / "compile-logs" / name)


def test_graph_breaks_say_where_why_and_what_to_do(shared_data: Path) -> None:
    compilation = logs(shared_data, "graphbreak.log.gz")
    by_line = {row.line: row for row in compilation.graph_breaks}
    assert set(by_line) == {14, 18}
    printed, branch = by_line[14], by_line[18]
    assert printed.file == branch.file == "/home/user/bench/compile_cases.py"
    assert "`print`" in printed.explanation
    assert printed.code == "if x.shape[0]>8: print('Batch too big!')"
    assert len(printed.hints) == 3
    assert printed.cost_s == pytest.approx(0.0833, abs=1e-3)
    assert branch.reason == "Data-dependent branching"
    assert any("torch.cond" in hint for hint in branch.hints)


def test_recompilations_name_the_dimension_to_mark(shared_data: Path) -> None:
    compilation = logs(shared_data, "recompile.log.gz")
    first, second = compilation.recompilations
    size = [(r.of, r.subject, r.dimension, r.expected, r.actual) for r in first.reasons]
    assert size == [("0/0", "x", 0, "8", "16")]
    assert [(r.of, r.dimension, r.expected, r.actual) for r in second.reasons] == [
        ("0/1", 1, "64", "128"),
        ("0/0", 0, "8", "16"),
    ]
    assert "mark_dynamic(x, 0)" in first.advice
    assert "mark_dynamic(x, 1)" in second.advice
    assert first.cost_s > 1
    # Dimension 1 became a symbol at the second recompilation, and the code pinned it at once.
    states = {(d.source, d.state) for d in compilation.frames[2].dimensions}
    assert states == {("L['x'].size()[0]", "dynamic"), ("L['x'].size()[1]", "specialized")}


def test_a_failure_says_where_and_why(shared_data: Path) -> None:
    compilation = logs(shared_data, "error.log.gz")
    (failure,) = compilation.failures
    assert failure.type == "Unsupported"
    assert failure.reason == "Data-dependent branching"
    assert (failure.file, failure.line) == ("/home/user/bench/compile_cases.py", 18)
    assert failure.code == "if x.sum()>0: return x*2"
    assert failure.effect == "the call raised this error"
    assert [frame.status for frame in compilation.frames] == ["failed"]
    assert compilation.graph_breaks == ()


def test_a_backend_that_fails_is_named(shared_data: Path) -> None:
    compilation = logs(shared_data, "comp_failure.log")
    (failure,) = compilation.failures
    assert failure.reason == "backend='broken_backend' raised: RuntimeError: broken backend"
    assert compilation.frames[0].backend == "broken_backend"
    assert "suppress_errors" in failure.effect


def test_the_recompile_limit_is_loud(shared_data: Path) -> None:
    compilation = logs(shared_data, "torch2.13.0_cpu_recompile_limit.log.gz")
    (hit,) = [row for row in compilation.recompilations if row.limit_hit]
    assert (hit.compile_id, hit.function, len(hit.reasons)) == ("0/8", "f", 8)
    assert hit.advice.startswith("The recompile limit is reached")
    frame = compilation.frames[hit.frame]
    assert frame.status == "skipped"
    # The loop that breaks is skipped whole.
    (row,) = compilation.graph_breaks
    assert (row.function, row.line, row.skipped_frame) == ("brk", 18, True)


def test_modes_and_cuda_graphs(shared_data: Path) -> None:
    compilation = logs(shared_data, "modes.log.gz")
    assert [(f.generation, f.mode, f.cudagraphs) for f in compilation.frames] == [
        (0, "default", "off"),
        (1, "reduce-overhead", "used"),
        (2, "max-autotune", "used"),
        (3, "max-autotune-no-cudagraphs", "off"),
    ]
    assert all(f.backend == "inductor" for f in compilation.frames)
    choice = compilation.autotune[0]
    assert (choice.op, choice.choices, choice.best) == ("mm", 17, "mm")
    assert choice.best_ms == pytest.approx(0.0659, abs=1e-3)
    assert choice.best_triton_ms == pytest.approx(0.1328, abs=1e-3)
    skipped = logs(shared_data, "cudagraph_skip.log.gz").frames[0].cudagraphs
    assert skipped.startswith("skipped: ")
    assert "CPU" in skipped


@pytest.mark.parametrize(
    "name",
    [
        "torch2.9.1_cpu_demo_PROVENANCE1.log.gz",
        "torch2.13.0_cpu_demo_INDUCTOR_PROVENANCE1.log.gz",
        "torch2.15.0_cpu_demo_PROVENANCE1.log.gz",
    ],
)
def test_provenance_stays_inside_its_own_graph(shared_data: Path, name: str) -> None:
    """A kernel's lines are lines of its own graph, although torch's records inherit other graphs' kernels."""
    compilation = logs(shared_data, name)
    assert all(kernel.source for kernel in compilation.kernels)
    contaminated = 0
    for kernel in compilation.kernels:
        text = compilation.texts.get((kernel.frame, kernel.direction)) or compilation.post_grad[kernel.graph]
        lines = {(file, int(line)) for file, line in re.findall(r"# .*?File: (.*?):(\d+) in", text.read())}
        contaminated += not {(s.file, s.line) for s in kernel.source} <= lines
    assert contaminated == 0


def test_every_kernels_source_can_be_printed(shared_data: Path) -> None:
    compilation = logs(shared_data, "attention.log.gz")
    shown = as_document(compilation)
    for name in {kernel.name for kernel in compilation.kernels}:
        for detail in kernel_details(compilation, shown, name):
            assert f"def {name}(" in detail.code
            assert detail.code.count("async_compile.triton(") == 1


def test_saved_tensors_have_sizes(shared_data: Path) -> None:
    forward = logs(shared_data, "attention.log.gz").graphs[0]
    assert [s.name for s in forward.saved] == [
        "view", "bmm", "sum_1", "div", "permute_5", "permute_6", "permute_7"
    ]  # fmt: skip
    square, scores = 4 * 1024 * 1024, 4 * 4 * 256 * 256
    assert forward.saved_bytes == 4 * square + 2 * scores + 4 * 4 * 256


def test_bytes_are_inductors_or_an_upper_bound(shared_data: Path) -> None:
    """Where Inductor says what a kernel moves, counting whole buffers is never less and mostly the same."""
    compilation = logs(shared_data, "mixnet_l_train.log.gz")
    from kinetoscope.compilation.generated import module

    equal = compared = 0
    for graph in compilation.graphs:
        parsed = module.parse(compilation.modules[graph.index].read())
        whole = {call.name: call.bytes for call in parsed.calls}
        for kernel in parsed.kernels:
            ours = whole[kernel.name]
            assert ours is not None
            assert kernel.bytes is not None
            assert ours >= kernel.bytes * 0.999
            compared += 1
            equal += ours <= kernel.bytes * 1.001
    assert compared == 521
    assert equal / compared > 0.8


def test_cache_keys_say_what_changed(shared_data: Path) -> None:
    """Two modes of one program: the component that says CUDA graphs is among the changes."""
    compilation = logs(shared_data, "modes.log.gz")
    before = _only(compilation, 0)
    changes = cache_keys.changed(before, _only(compilation, 1))
    (graph,) = changes
    named = {c.component: (c.before, c.after) for c in graph.changes}
    assert named["fx_kwargs[cudagraphs]"] == ("BoxedBool(value=False)", "BoxedBool(value=True)")
    assert cache_keys.changed(before, before) == ()


def _only(compilation: CompiledProgram, frame: int) -> CompiledProgram:
    from msgspec.structs import replace

    return replace(compilation, graphs=tuple(g for g in compilation.graphs if g.frame == frame))


def test_generated_kernels_of_a_training_step_reach_their_lines(shared_data: Path) -> None:
    """At least 99 % of the device time of generated kernels is joined to graph, ATen ops and source lines."""
    trace = shared_data / "h200" / "mixnet_l_train_bs128_compile.json.gz"
    joined = join(load_profile(shared_data / "compile-logs" / "mixnet_l_train.log.gz", trace))
    assert joined is not None
    generated, every = _device_times(trace)
    matched = joined.matched
    assert matched.generated_us == pytest.approx(generated)
    for reached in ("to_aten_ops_us", "to_source_us"):
        assert getattr(matched, reached) >= 0.99 * generated
    assert matched.unmatched == ()
    forward, backward = joined.compilation.graphs
    assert (forward.direction, forward.calls) == ("forward", 2)
    assert (backward.direction, backward.calls) == ("backward", 2)
    # 14 kernels of the backward have a namesake in the forward: they are distinguished.
    names = [{k.name for k in joined.compilation.kernels if k.graph == g.index} for g in (forward, backward)]
    assert len(names[0] & names[1]) == 14
    for kernel in joined.compilation.kernels:
        assert kernel.launches == 2 * kernel.calls  # the module calls it so often, and ran twice
    inside = forward.device_time_us or 0, backward.device_time_us or 0
    assert joined.coverage.compiled_share_of_device_time == pytest.approx(sum(inside) / every)
    assert joined.coverage.cudagraph_share_of_device_time == 0
    for graph in (forward, backward):
        library = sum(call.device_time_us or 0 for call in graph.extern)
        assert library == pytest.approx(graph.extern_device_time_us, rel=0.01)
    for line in joined.source_lines:
        place = (line.file, line.line)
        generated = sum(
            kernel.device_time_us or 0
            for kernel in joined.compilation.kernels
            if place in {(one.file, one.line) for one in kernel.source}
        )
        assert generated + sum(line.library_us.values()) == pytest.approx(line.device_time_us)
    # The convolutions, which are most of this model's time, are one line.
    assert joined.source_lines[0].code.startswith("x_out = [c(x_split[i])")


def _device_times(path: Path) -> tuple[float, float]:
    """Microseconds of generated kernels and of all device work, straight from the file."""
    generated = every = 0.0
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            every += event["dur"]
            generated += event["dur"] if event["name"].startswith("triton_") else 0
    return generated, every


def test_fusion_text_stands_alone(shared_data: Path) -> None:
    from kinetoscope.compilation import fusion

    path = shared_data / "compile-logs" / "torch2.13.0_cpu_demo_TORCH_LOGS_fusion_and_more.txt.gz"
    with gzip.open(path, "rt") as file:
        text = file.read()
    parsed = fusion.parse(text.splitlines())
    assert len(parsed.graphs) == len(re.findall(r"attempting fusion \(1/10\)", text))
    rounds = [r for _, graph in parsed.graphs for r in graph.rounds]
    assert len(rounds) == text.count("completed fusion round")
    assert (rounds[0].before, rounds[0].after) == (15, 12)
