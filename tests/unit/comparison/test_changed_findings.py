"""Findings that a limit of a rule separates, and findings that a change of the program does."""

from __future__ import annotations

from msgspec.structs import replace

from kinetoscope.comparison.difference import difference
from kinetoscope.findings.registry import find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties
from traces import call, host, kernel, step, trace

H200 = DeviceProperties(index=0, name="NVIDIA H200", properties={})
# It moves 805 MB, half of the bandwidth in 336 µs: the rule's limit.
PRODUCT = {"Input Dims": [[64, 16, 2048, 64]] * 2, "Input type": ["c10::BFloat16"] * 2}
AT_THE_LIMIT_US, BELOW_US = 336.0, 0.96


def run(took_us: float, *, times: int = 1) -> LoadedRun:
    """Three steps of a millisecond, with a product by element, or several."""
    events = [step(number, 1000.0 * number, 1000.0) for number in (1, 2, 3)]
    for number in range(3 * times):
        at, correlation = 1000.0 + 1000.0 * (number // times) + 400.0 * (number % times), number + 1
        events += [host("aten::mul", at + 1, 8, **PRODUCT), call("cudaLaunchKernel", at + 2, 2, correlation)]
        events += [kernel("void elementwise_kernel<MulFunctor>(int)", at + 20, took_us, correlation)]
    return LoadedRun((replace(trace(*events), devices=(H200,)),))


SLOW, FAST = run(AT_THE_LIMIT_US / BELOW_US), run(AT_THE_LIMIT_US * BELOW_US)


def rules(base: LoadedRun, new: LoadedRun) -> tuple[set[str], set[str]]:
    found = difference([base], [new])
    gone, come = ({finding.rule for finding in side} for side in (found.gone, found.come))
    return gone, come


def test_a_finding_at_its_limit_is_neither_new_nor_gone() -> None:
    """4 % to either side of the limit: what two runs of one program differ by."""
    assert "low-bandwidth" in {finding.rule for finding in find(SLOW)}
    assert "low-bandwidth" not in {finding.rule for finding in find(FAST)}
    assert rules(FAST, SLOW) == (set(), set())
    assert rules(SLOW, FAST) == (set(), set())


def test_a_finding_is_gone_where_its_work_takes_less_or_is_not_there_as_often() -> None:
    assert "low-bandwidth" in rules(SLOW, run(AT_THE_LIMIT_US / 2))[0]
    assert "low-bandwidth" in rules(run(AT_THE_LIMIT_US * BELOW_US, times=2), SLOW)[1]
