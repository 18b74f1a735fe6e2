"""Concatenations that copy all that was kept, to add a little to it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

import traces
from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import grown_cache
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

LAYERS, US, LENGTH = 4, 200.0, 1000
COPIES = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<…>"


def generated(
    *lengths: int, added: int = 1, shapes: bool = True, of_layer: int = 2, per_step: int = 1, us: float = US
) -> Eager:
    """Passes that append to keys and values of so many tokens, ; the time is as the tokens."""
    program = Eager()
    for number, length in enumerate(lengths, start=1):
        for _ in range(LAYERS):
            program.run("aten::mm", kernel="gemm", us=150)
            for _ in range(of_layer):
                dims = [[[64, 16, length, 64], [64, 16, added, 64]], []]
                known = {"dims": dims, "types": ["TensorList", "Scalar"], "values": ["", "2"]}
                program.run(
                    "aten::cat", kernel=COPIES, us=us * length / lengths[0], **(known if shapes else {})
                )
        if number % per_step == 0:
            program.step()
    return program


def test_what_is_new_is_written_alone() -> None:
    (finding,) = grown_cache.find(generated(LENGTH, LENGTH + 1, LENGTH + 2).view())
    assert finding.title == (
        "8 concatenations per step of all that was kept with a little that is new, more each time: 1.60 ms"
    )
    assert finding.saving.us == pytest.approx(2 * LAYERS * (US - 3), rel=0.02)  # 3 µs a kernel


def test_the_new_part_takes_its_share() -> None:
    """200 tokens come to 1,000, then to 1,200, then to 1,400, by the tokens that are read and written."""
    (finding,) = grown_cache.find(generated(LENGTH, LENGTH + 200, LENGTH + 400, added=200).view())
    kept = [LENGTH, LENGTH + 200, LENGTH + 400]
    saved = [2 * LAYERS * US * length / LENGTH * (1 - 200 / (length + 200)) for length in kept]
    assert finding.saving.us == pytest.approx(sum(saved) / 3, rel=0.02)


def test_passes_of_one_step_show_it_too() -> None:
    (finding,) = grown_cache.find(generated(*range(LENGTH, LENGTH + 4), per_step=4).view())
    assert finding.saving.us == pytest.approx(4 * 2 * LAYERS * (US - 3), rel=0.02)


def test_a_sequence_that_is_done_gives_way_to_a_shorter_one() -> None:
    program = generated(LENGTH, LENGTH + 1, LENGTH + 2, 500, 501)
    assert list(grown_cache.find(program.view()))


@pytest.mark.parametrize(
    "program",
    [
        generated(LENGTH, LENGTH, LENGTH),  # words and pictures, attended to together
        generated(LENGTH, LENGTH + 1),  # may be chance
        generated(LENGTH, LENGTH + 2, LENGTH + 4),  # batches of other lengths
        generated(LENGTH, LENGTH + 500, LENGTH + 1000, added=500),  # half as much is no little
        generated(LENGTH, LENGTH + 1, LENGTH + 2, shapes=False),  # neither shapes nor lines
        generated(LENGTH, LENGTH + 1, LENGTH + 2, us=1.0),
    ],
)
def test_others_are_no_grown_caches(program: Eager) -> None:
    assert not [one for one in grown_cache.find(program.view()) if one.saving.us]


def test_features_that_grow_from_layer_to_layer_are_none() -> None:
    program = Eager()
    for _ in range(3):
        for layer in range(12):
            dims = [[[32, 256 + 32 * layer, 56, 56], [32, 32, 56, 56]], []]
            program.run("aten::cat", kernel=COPIES, us=US, dims=dims, values=["", "1"])
        program.step()
    assert not list(grown_cache.find(program.view()))


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["self.k = torch.cat([self.k, k], dim=2)"], True),
        (["k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)", "self.k, self.v = k, v"], True),
        (["k = torch.cat((past[i].k, k), -2)", "past[i].k = k", "return k"], True),
        (["self.seen = torch.concat([new, self.seen])"], True),
        (["k = torch.cat([cache[0], k], 2)", "present = (k, v)", "return y, present"], True),
        (["k = torch.cat([cache.k, k], 2)", "self.caches[layer] = (k, v)"], True),
        (["k = torch.cat([cache[0], k], 2)", "y = attend(q, k)", "return y"], False),  # of a prefix
        (["k = torch.cat([cache[0], k], 2)", "return k"], False),
        (["k = torch.cat([self.words(x), k], 2)", "self.k = k"], False),
        (["x = torch.cat([x, layer(x)], 1)", "return x"], False),
        (["x = torch.cat([past_target, future], 1)", "return x, past_target"], False),
        (["y = torch.cat(parts)"], False),
        (["y, self.k = torch.cat([a, b]), torch.cat([self.k, k])"], False),  # which of both is not known
    ],
)
def test_without_shapes_the_source_says_what_is_kept(tmp_path: Path, lines: list[str], kept: bool) -> None:
    text = "def add(self, k, v, x, y, cache, past, i):\n" + textwrap.indent("\n".join(lines), "    ")
    view = generated(LENGTH, LENGTH + 10, LENGTH + 20, added=10, shapes=False).view()
    (tmp_path / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/train.py": text})))
    manifest = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    ops = ["aten::mm", "aten::cat", "aten::cat"] * LAYERS
    noted = traces.noted(*((op, f"train.py({2 if op == 'aten::cat' else 1}): add") for op in ops))
    run = LoadedRun((view.trace,), manifest, folder=tmp_path, lines={0: noted})
    found = list(grown_cache.find(RankView(run, view.trace)))
    assert bool(found) == kept
    if found:  # the kernels take a hundredth longer from step to step: that is what is new
        mean_us = US * (1 + 1.01 + 1.02) / 3
        assert found[0].saving.us == pytest.approx(2 * LAYERS * (mean_us - 3), rel=0.02)


def decoded(*of_layer: tuple[str, str, float], steps: int = 3) -> Eager:
    program = Eager()
    for _ in range(steps):
        for _ in range(LAYERS):
            for op, kernel, us in of_layer:
                program.run(op, kernel=kernel, us=us)
        program.step()
    return program


NORM, PRODUCT = ("aten::native_layer_norm", "layer_norm_kernel", 3.5), ("aten::addmm", "gemm", 6.0)
CAT, SUM = ("aten::cat", COPIES, US), ("aten::add", "vectorized_elementwise_kernel", 1.5)
ATTENDS = ("aten::_flash_attention_forward", "flash_fwd_splitkv_kernel", 60.0)
REPEATS = ("aten::copy_", "elementwise_kernel<direct_copy_kernel_cuda>", 90.0)


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        ([NORM, PRODUCT, CAT, CAT, ATTENDS, PRODUCT, SUM], True),
        ([NORM, PRODUCT, CAT, CAT, REPEATS, REPEATS, ATTENDS, PRODUCT, SUM], True),
        ([NORM, PRODUCT, CAT, CAT, CAT, ATTENDS, SUM], False),  # queries as well: words and pictures
        ([NORM, PRODUCT, CAT, ATTENDS, SUM], False),
        ([NORM, PRODUCT, CAT, CAT, PRODUCT, SUM], False),
        ([NORM, CAT, CAT, PRODUCT, PRODUCT, SUM, SUM, ATTENDS], False),  # of what is projected
        ([NORM, PRODUCT, CAT, CAT, ATTENDS, ("aten::add", "vectorized_elementwise_kernel", 25.0)], False),
        ([NORM, ("aten::addmm", "gemm", 60.0), CAT, CAT, ATTENDS, SUM], False),  # that makes what is new
        ([CAT, CAT, ATTENDS], False),
    ],
)
def test_without_either_kernels_show_what_was_there_before(
    layer: list[tuple[str, str, float]], found: bool
) -> None:
    findings = list(grown_cache.find(decoded(*layer).view()))
    assert bool(findings) == found
    if findings:
        assert findings[0].affected_us == pytest.approx(2 * LAYERS * US)
