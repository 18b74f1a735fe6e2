"""`kinetoscope.tune`: which way to compile a model wins on these inputs, measured in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kinetoscope.bench import statistics
from kinetoscope.bench.device import bench, import_torch
from kinetoscope.bench.harness import TWIN, measure
from kinetoscope.bench.inject import difference, tensors
from kinetoscope.bench.results import Session
from kinetoscope.bench.settings import MODES, Setting
from kinetoscope.bench.tuning_rows import AGREEMENT, Row, Tuning, recommend
from kinetoscope.errors import UsageError


def tune(
    model: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    modes: Sequence[str] = MODES,
    seconds: float = 10.0,
    session: list[Session] | None = None,
) -> Tuning:
    """Compile ``model`` in each mode and time the results side by side, eager as base.

    Args:
        model: a module or function.
        inputs: its positional arguments, or keyword arguments as a mapping.
        modes: modes of ``torch.compile``.
        seconds: of measuring, without compilation.
        session: the session with every sample is appended here.

    Returns:
        The same table as `kinetoscope tune` makes; ``compile_s`` is the time of each mode's first three calls less
        that of three steady ones (caches as they are). Gradients are as the caller has them: wrap the call in
        ``torch.no_grad()`` to tune inference.

    Raises:
        UsageError: there is no tensor among the inputs.
    """
    torch = import_torch()
    given: dict[str, Any] = dict(inputs) if isinstance(inputs, Mapping) else {}
    positional = () if isinstance(inputs, Mapping) else tuple(inputs)
    found = tensors([positional, given])
    if not found:
        raise UsageError("the inputs hold no tensor", mend="kinetoscope.tune(model, (x,))")
    device = found[0].device.type
    bed = bench(device)
    settings = [Setting(), *(Setting(mode=mode) for mode in modes)]
    calls: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Row] = {}
    expected: list[Any] = []
    for setting in settings:
        function = model if setting.mode is None else torch.compile(_own_code(model), **setting.arguments())
        calls[setting.label] = _call(function, positional, given)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        try:
            output = [t.detach().clone() for t in tensors(calls[setting.label]())]
            for _ in range(2):  # a mode with CUDA graphs warms up once and records once
                calls[setting.label]()
        except Exception as error:  # a compiler's: this mode cannot be had
            rows[setting.label] = Row(
                setting=setting, label=setting.label, error=f"{type(error).__name__}: {error}"
            )
            del calls[setting.label]
            continue
        if device == "cuda":
            torch.cuda.synchronize()
        expected = expected or output
        gap = None if setting.mode is None else difference(output, expected)
        rows[setting.label] = Row(
            setting=setting,
            label=setting.label,
            startup_s=time.perf_counter() - began,
            peak_memory_bytes=int(torch.cuda.max_memory_allocated()) if device == "cuda" else None,
            output_difference=gap,
            agrees=None if gap is None else gap <= AGREEMENT,
        )
    measured = measure(
        calls, timer=bed.wall, base="eager", clocks=bed.clocks, seconds=seconds, precision=0.0005
    )
    if session is not None:
        session.append(measured)
    finished = [_finish(rows[setting.label], measured) for setting in settings]
    recommendation, lines = recommend(finished, None)
    return Tuning(
        device=bed.name,
        steps_by="call",
        step_name=getattr(model, "__name__", type(model).__name__),
        rounds=measured.rounds,
        rows=tuple(finished),
        recommendation=recommendation,
        lines=lines,
    )


def _call(
    function: Callable[..., Any], positional: Sequence[Any], given: Mapping[str, Any]
) -> Callable[[], Any]:
    return lambda: function(*positional, **given)


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function behind a code object of its own.

    Dynamo keeps what it compiled under the code object and goes through all of it at each call: modes that shared
    one would be the slower the earlier they were compiled, by about 4 µs each.
    """

    def call(*positional: Any, **given: Any) -> Any:
        return function(*positional, **given)

    call.__code__ = call.__code__.replace()
    return call


def _finish(row: Row, measured: Session) -> Row:
    if row.error is not None:
        return row
    step_s = measured[row.label].median_ns / 1e9
    row = msgspec.structs.replace(row, step_s=step_s, steps=measured.rounds, rounds_s=(step_s,))
    comparison = next((c for c in measured.comparisons if c.name == row.label), None)
    compile_s = max(0.0, (row.startup_s or 0.0) - 3 * step_s)
    if comparison is None or row.label.endswith(TWIN):
        return row
    saved = measured["eager"].median_ns / 1e9 - step_s
    verdict: statistics.Verdict = comparison.verdict
    return msgspec.structs.replace(
        row,
        ratio=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        verdict=verdict,
        compile_s=compile_s,
        break_even_steps=round(compile_s / saved) if verdict == "faster" else None,
    )
