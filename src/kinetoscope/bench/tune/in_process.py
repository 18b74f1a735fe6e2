"""`kinetoscope.tune`: which mode of compiling a model wins on these inputs, measured in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kinetoscope.bench.measure.device import bench_for, import_torch
from kinetoscope.bench.measure.harness import measure
from kinetoscope.bench.measure.results import MeasurementSet
from kinetoscope.bench.tune.inject import difference, tensors
from kinetoscope.bench.tune.results import TOLERANCE, SettingRow, Tuning, recommend
from kinetoscope.bench.tune.settings import MODES, Setting, grid
from kinetoscope.errors import UsageError
from kinetoscope.statistics import intervals

Inputs = Sequence[Any] | Mapping[str, Any]


def tune(
    model: Callable[..., Any],
    inputs: Inputs | Mapping[int, Inputs],
    *,
    modes: Sequence[str] = MODES,
    backends: Sequence[str] = (),
    dynamic: Sequence[bool] = (),
    precisions: Sequence[str] = (),
    tokens_per_sample: int | None = None,
    seconds: float = 10.0,
    measurements: list[MeasurementSet] | None = None,
) -> Tuning:
    """Compile ``model`` in each mode and time the results side by side, eager as base.

    Args:
        model: a module or function.
        inputs: its positional arguments, or keyword arguments as a mapping. A mapping from batch sizes to
            either tries each of them, and compares the time of a sample.
        modes: modes of ``torch.compile``.
        backends: of ``torch.compile``; Inductor where none is named.
        dynamic: what ``dynamic=`` is set to.
        precisions: also with these, as ``torch.set_float32_matmul_precision`` names them.
        tokens_per_sample: only repeated in the result.
        seconds: of measuring, without compilation.
        measurements: every sample is appended here.

    Returns:
        The same table as `kinetoscope tune` makes; ``compile_s`` is the time of each mode's first three calls
        less that of three steady ones (caches as they are). Gradients are as the caller has them: wrap the
        call in ``torch.no_grad()`` to tune inference.

    Raises:
        UsageError: there is no tensor among the inputs.
    """
    torch = import_torch()
    of_batch = _by_batch(inputs)
    given = tensors(list(of_batch.values()))
    if not given:
        raise UsageError("the inputs hold no tensor", hint="kinetoscope.tune(model, (x,))")
    device = given[0].device.type
    bench = bench_for(device)
    settings = grid(
        modes,
        backends=backends,
        dynamic=dynamic,
        precisions=precisions,
        batches=[batch for batch in of_batch if batch is not None],
    )
    before = torch.get_float32_matmul_precision()
    calls: dict[str, Callable[[], Any]] = {}
    rows: dict[str, SettingRow] = {}
    expected: dict[str | None, list[Any]] = {}
    for setting in settings:
        function = model if setting.is_eager else torch.compile(_own_code(model), **setting.arguments())
        precision = (setting.matmul_precision or before) if precisions else None
        call = _call(function, *of_batch[setting.batch], precision)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        try:
            output = [t.detach().clone() for t in tensors(call())]
            for _ in range(2):  # a mode with CUDA graphs warms up once and records once
                call()
        except Exception as error:  # a compiler's: this mode cannot be had
            rows[setting.label] = SettingRow(
                setting=setting, label=setting.label, error=f"{type(error).__name__}: {error}"
            )
            continue
        if device == "cuda":
            torch.cuda.synchronize()
        calls[setting.label] = call
        gap = None if setting.is_base else difference(output, expected[setting.batch])
        if setting.is_base:
            expected[setting.batch] = output
        rows[setting.label] = SettingRow(
            setting=setting,
            label=setting.label,
            startup_s=time.perf_counter() - began,
            peak_memory_bytes=int(torch.cuda.max_memory_allocated()) if device == "cuda" else None,
            output_difference=gap,
            agrees=None if gap is None else gap <= TOLERANCE,
        )
    base = settings[0]
    measured = measure(
        calls, timer=bench.wall, base=base.label, clocks=bench.clocks, seconds=seconds, precision=0.0005
    )
    torch.set_float32_matmul_precision(before)
    if measurements is not None:
        measurements.append(measured)
    finished = [_finish(rows[setting.label], base, measured) for setting in settings]
    recommendation, lines = recommend(finished, None)
    return Tuning(
        device=bench.name,
        steps_by="call",
        step_name=getattr(model, "__name__", type(model).__name__),
        rounds=measured.rounds,
        tokens_per_sample=tokens_per_sample,
        rows=tuple(finished),
        recommendation=recommendation,
        lines=lines,
    )


def _by_batch(
    inputs: Inputs | Mapping[int, Inputs],
) -> dict[str | None, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Positional and keyword arguments of each batch size; under None where there is only one."""
    if isinstance(inputs, Mapping) and inputs and all(isinstance(key, int) for key in inputs):
        batches: dict[str | None, Any] = {str(key): value for key, value in inputs.items()}
    else:
        batches = {None: inputs}
    return {
        batch: ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})
        for batch, given in batches.items()
    }


def _call(
    function: Callable[..., Any],
    positional: Sequence[Any],
    given: Mapping[str, Any],
    precision: str | None,
) -> Callable[[], Any]:
    if precision is None:
        return lambda: function(*positional, **given)
    import torch

    def call() -> Any:
        torch.set_float32_matmul_precision(precision)
        return function(*positional, **given)

    return call


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put a function behind a code object of its own.

    Dynamo keeps what it compiled under the code object, and a call checks the guards of what is kept there:
    modes that shared one could pay for each other's.
    """

    def call(*positional: Any, **given: Any) -> Any:
        return function(*positional, **given)

    call.__code__ = call.__code__.replace()
    return call


def _finish(row: SettingRow, base: Setting, measured: MeasurementSet) -> SettingRow:
    """The row with its time; ratios are of a sample's time where batches are numbers."""
    if row.error is not None:
        return row
    step_s = measured[row.label].median_ns / 1e9
    samples = row.setting.samples
    row = msgspec.structs.replace(
        row,
        step_s=step_s,
        steps=measured.rounds,
        rounds_s=(step_s,),
        samples_per_s=None if samples is None else samples / step_s,
    )
    comparison = measured.comparison(row.label)
    if comparison is None:
        return row
    larger = (samples or 1) / (base.samples or 1)
    interval = intervals.Ratio(comparison.ratio / larger, comparison.low / larger, comparison.high / larger)
    verdict = intervals.verdict(interval, noise_floor=comparison.noise_floor)
    saved = measured[base.label].median_ns / 1e9 * larger - step_s
    compile_s = None if row.setting.is_eager else max(0.0, (row.startup_s or 0.0) - 3 * step_s)
    return msgspec.structs.replace(
        row,
        **interval._asdict(),
        verdict=verdict,
        compile_s=compile_s,
        break_even_steps=round(compile_s / saved) if compile_s and verdict == "faster" else None,
    )
