"""Sorts of everything, of which only the first few are used."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

import traces
from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import whole_sort
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

STEPS, US = 3, 1000.0
RADIX = "void at_cuda_detail::cub::detail::radix_sort::DeviceSegmentedRadixSortKernel<…, float, long, …>"
SCORES, FLOAT, PLACES = [256, 400_000], "float", "long int"

Op = tuple[str, list[str]]  # of what the sort gave: the op, and its numbers


def steps(
    *then: Op, sort: str = "aten::argsort", us: float = US, kernel: str = RADIX, shapes: bool = True,
    of: str = PLACES,
) -> Eager:  # fmt: skip
    """Steps that sort along the second dimension, and what follows."""
    program = Eager()
    for _ in range(STEPS):
        known = {"dims": [SCORES, [], []], "types": [FLOAT, "Scalar", "Scalar"], "values": ["", "1", "True"]}
        program.run(sort, kernel=kernel, us=us, **(known if shapes else {}))
        for op, values in then:
            known = {"dims": [SCORES] + [[]] * len(values), "types": [of] + ["Scalar"] * len(values)}
            program.note(op, **(known | {"values": ["", *values]} if shapes else {}))
        program.run("aten::eq", us=100, dims=[[256, 100]] if shapes else None)
        program.run("aten::mm", kernel="gemm", us=US, dims=[[256, 384], [384, 400_000]] if shapes else None)
        program.step()
    return program


FIRST = ("aten::slice", ["1", "0", "100", "1"])


def test_finding_the_first_few_takes_a_fifth() -> None:
    (finding,) = whole_sort.find(steps(FIRST).view())
    assert finding.title == "1 sort of everything per step, of which only the first few are used: 1.00 ms"
    # A number has 32 bits, its place 64: counted once, then four times read and written; or read five times.
    sorting, finding_few = 4 + 4 * 2 * (4 + 8), 5 * 4
    assert finding.saving.us == pytest.approx(US * (1 - finding_few / sorting), rel=0.02)
    assert not finding.saving.condition


def test_twenty_kernels_take_their_time_however_short_the_sort() -> None:
    (finding,) = whole_sort.find(steps(FIRST, us=150).view())
    assert finding.saving.us == pytest.approx(150 - 20 * 3, rel=0.05)
    assert not [one for one in whole_sort.find(steps(FIRST, us=50).view()) if one.saving.us]


@pytest.mark.parametrize(
    ("then", "few"),
    [
        ([("aten::slice", ["1", "-100", "9223372036854775807", "1"])], True),
        ([("aten::narrow", ["1", "0", "100"])], True),
        ([("aten::select", ["1", "0"])], True),
        ([("aten::select", ["1", "-1"])], True),
        ([FIRST, ("aten::slice", ["1", "0", "1", "1"])], True),
        ([], False),  # returned, for all that is known
        ([("aten::select", ["1", "200000"])], False),  # the median
        ([("aten::slice", ["0", "0", "10", "1"])], False),  # some rows, each whole
        ([("aten::slice", ["1", "0", "200000", "1"])], False),  # half
        ([("aten::slice", ["1", "1", "400000", "1"])], False),  # all but the first
        ([FIRST, ("aten::argsort", ["1", "False"])], False),  # the ranks of all
        ([FIRST, ("aten::gather", [])], False),
    ],
)
def test_shapes_say_what_goes_on(then: list[Op], few: bool) -> None:
    assert bool(list(whole_sort.find(steps(*then).view()))) == few


def test_sorted_chances_that_are_summed_up_are_used_whole() -> None:
    assert list(whole_sort.find(steps(FIRST, sort="aten::sort", of=FLOAT).view()))
    program = steps(("aten::cumsum", ["1"]), FIRST, sort="aten::sort", of=FLOAT)
    assert not list(whole_sort.find(program.view()))


def test_rows_that_one_block_sorts_are_left_alone() -> None:
    assert not list(whole_sort.find(steps(FIRST, kernel="void at::native::bitonicSortKVInPlace<…>").view()))


@pytest.mark.parametrize(
    ("lines", "few"),
    [
        (["found = torch.argsort(scores, dim=1, descending=True)[:, :TOP]"], True),
        (["found = scores.argsort(-1, True)[..., :100]"], True),
        (["found = torch.sort(scores, descending=True)[1][:, :self.k]"], True),
        (["found = scores.sort(1).indices[:, -k:]"], True),
        (["values, order = scores.sort(dim=-1)", "a, b = values[:, :k], order[:, :k]"], True),
        (["_, order = scores.sort()", "return docs[order[:min(k, len(docs))]]"], True),
        (["order = scores.argsort()", "order = order[:k]", "return docs[order]"], True),
        (["order = scores.argsort()", "best = order[0]"], True),
        (["both = scores.sort()", "best = both.indices[:k]"], True),
        (["found = scores.argsort(1)"], False),
        (["found = scores.argsort(1)[:k]"], False),  # rows
        (["found = scores.argsort(0)[:, :k]"], False),
        (["found = scores.argsort(dim)[:, :k]"], False),
        (["keep = noise.argsort(1)[:, : count // 2]"], False),
        (["count = int(half * all)", "keep = noise.argsort(1)[:, :count]"], False),
        (["order = noise.argsort(1)", "back, keep = order.argsort(1), order[:, :k]"], False),
        (["values, order = p.sort(-1)", "p = values.cumsum(-1)", "top = values[:, :k]"], False),
        (["self.order = scores.argsort(1)"], False),
        (["values = scores.sort(1)[0]"], False),
        (["most = scores.sort(1)[0][:, 1:]"], False),
        (["most = scores.sort(1)[0][:, :-1]"], False),
        (["median = scores.sort(1)[0][:, n]"], False),
    ],
)
def test_without_shapes_the_source_says_what_goes_on(tmp_path: Path, lines: list[str], few: bool) -> None:
    text = "def step(scores, docs):\n" + textwrap.indent("\n".join(lines), "    ")
    at = next(number for number, line in enumerate(lines) if "sort" in line) + 2
    view = steps(FIRST, shapes=False).view()
    (tmp_path / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": text})))
    manifest = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    ops = ["aten::argsort", "aten::slice", "aten::eq", "aten::mm"]
    noted = traces.noted(*((op, f"train.py({at}): step") for op in ops))
    run = LoadedRun((view.trace,), manifest, folder=tmp_path, lines={0: noted})
    assert bool(list(whole_sort.find(RankView(run, view.trace)))) == few
