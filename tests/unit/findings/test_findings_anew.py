"""Matrices that are transposed anew, graphs that are prepared anew, answers that are computed anew."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import traces
from eager import Eager
from kinetoscope.analysis.origins.lines import OpLines
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import cudagraph_anew, normalized_weights, repeated_work, sparse_transpose
from kinetoscope.findings.rules.pageable_copy import travelling
from kinetoscope.recording.manifest import Manifest, Program, RankRecord, StepTimings
from kinetoscope.sources.run import LoadedRun

STEPS = 3
GEMM = "sm80_xmma_gemm"


def propagation(layers: int = 3, built_anew: bool = False, sorts: bool = True) -> Eager:
    """A graph net: its products with a sparse matrix, and the backward pass of these."""
    program = Eager()
    for _ in range(STEPS):
        if built_anew:
            program.run("aten::coalesce", "aten::_coalesce", kernel="DeviceMergeSortMergeKernel", us=100)
        for layer in range(layers):
            program.run("aten::_sparse_mm", "aten::addmm", kernel="csrmm_kernel", us=50, sequence=layer)
        for layer in reversed(range(layers)):
            node = "SparseAddmmBackward0"
            if sorts:
                sort = ["aten::mm", "aten::coalesce", "aten::_coalesce"]
                kernel = "DeviceMergeSortMergeKernel"
                program.backward(node, *sort, sequence=layer, kernel=kernel, us=100)
            program.backward(node, "aten::mm", sequence=layer, kernel="csrmm_kernel", us=50)
        program.optimizer()
        program.step()
    return program


def test_a_matrix_that_stays_is_transposed_once() -> None:
    (finding,) = sparse_transpose.find(propagation().view())
    assert finding.title == "The backward pass transposes sparse matrices 3 times per step"
    assert finding.saving.us == pytest.approx(3 * 100, rel=0.1)
    assert finding.saving.most_us == pytest.approx(3 * 100 + 6 * 50, rel=0.1)  # its products may get faster


def test_a_new_matrix_is_transposed_once_a_step() -> None:
    (finding,) = sparse_transpose.find(propagation(built_anew=True).view())
    assert finding.saving.us == pytest.approx(2 * 100, rel=0.1)


def test_a_matrix_that_is_built_anew_is_not_transposed() -> None:
    assert not list(sparse_transpose.find(propagation(built_anew=True, sorts=False).view()))


def distillation(
    width: int = 264,
    teacher_trains: bool = False,
    average: bool = False,
    products: int = 12,
    adapters: int = 0,
    evaluated: bool = False,
) -> Eager:
    """A student's step with the answers of a teacher of another ``width``; with ``adapters``, of the student
    without these. A teacher that is ``evaluated`` also answers something whose answer the host reads."""
    program = Eager()
    for _ in range(STEPS):
        for _ in range(products):
            program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=width)
        for number in range(4):
            program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=132, sequence=number)
        if teacher_trains:
            program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=width, sequence=4)
        for number in range(adapters):
            program.run("aten::linear", "aten::mm", kernel=GEMM, us=5, grid=1, sequence=4 + number)
        for number in reversed(range(4 + teacher_trains + adapters)):
            program.backward("AddmmBackward0", "aten::mm", kernel=GEMM, us=50, sequence=number)
        program.optimizer()
        if average:
            program.run("aten::_foreach_lerp_", kernel="multi_tensor_apply_kernel")
        for _ in range(products * evaluated):
            program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=width)
        if evaluated:
            program.run("aten::item", "aten::_local_scalar_dense", kernel="Memcpy DtoH", us=2)
        program.step()
    return program


def test_answers_of_a_frozen_net_may_be_kept() -> None:
    (finding,) = repeated_work.find(distillation().view())
    assert finding.title == "A forward pass of 12 products gets no gradient in each step"
    assert finding.saving.us == pytest.approx(12 * 50, rel=0.1)
    assert finding.saving.condition == "the same inputs come again in every epoch"
    assert "If its inputs come again in every epoch" in finding.advice


def test_a_frozen_net_that_is_evaluated_is_no_trained_one() -> None:
    (finding,) = repeated_work.find(distillation(evaluated=True).view())
    assert finding.saving.us == pytest.approx(12 * 50, rel=0.1)


@pytest.mark.parametrize("apart", [True, False])
def test_what_a_module_computes_among_what_is_trained_is_no_net_of_its_own(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """The search for the nearest code takes what the encoder gave; its module also gives a loss."""
    view = distillation().view()
    host = view.trace.host_events
    follows = host["sequence"].is_not_null()
    teacher = pl.lit("Teacher › Linear" if apart else "Student › Quantizer")
    modules = pl.when(follows).then(pl.lit("Student › Quantizer")).otherwise(teacher)
    unknown = {name: pl.lit(None, pl.String) for name in ("line", "function", "module", "before")}
    rows = host.select(modules=modules, noted=pl.lit(None, pl.UInt32), **unknown)
    monkeypatch.setattr(RankView, "lines", OpLines(rows, 0.0))
    assert len(list(repeated_work.find(view))) == apart


def test_a_net_without_its_adapters_is_another_one() -> None:
    (finding,) = repeated_work.find(distillation(width=132, adapters=12).view())
    assert finding.saving.us == pytest.approx(12 * 50, rel=0.2)
    assert not list(repeated_work.find(distillation(width=132, adapters=2).view()))


@pytest.mark.parametrize(
    "program",
    [
        distillation(teacher_trains=True),  # a discriminator's step: the generator changes
        distillation(average=True),  # a mean teacher changes with its student
        distillation(products=3),  # a metric
    ],
)
def test_answers_that_change_are_not_kept(program: Eager) -> None:
    assert not list(repeated_work.find(program.view()))


def test_a_policy_that_acts_gets_new_inputs() -> None:
    assert not list(repeated_work.find(distillation().view(found_by="iteration")))


def with_source(
    folder: Path,
    program: Eager,
    source: str,
    *called: tuple[str, int],
    functions: dict[int, str] | None = None,
) -> RankView:
    """The program with its source, and ops with the lines that call them in a step."""
    view, names = program.view(), functions or {}
    lines = traces.noted(
        *((op, f"program.py({number}): {names.get(number, '<module>')}") for op, number in called)
    )
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={"/home/program.py": source})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    return RankView(LoadedRun((view.trace,), kept, folder=folder, lines={0: lines}), view.trace)


def test_a_pass_may_be_cut_off_where_no_step_is_whole() -> None:
    program = distillation()
    program.events = [event for event in program.events if "ProfilerStep" not in event["name"]]
    assert not list(repeated_work.find(program.view()))


@pytest.mark.parametrize("reads", ["after each", "before the backward pass"])
def test_answers_that_the_host_acts_by_are_new_ones(reads: str) -> None:
    """A policy acts four times between two updates; or the loss is read before its backward pass."""
    acts, program = reads == "after each", Eager()
    for _ in range(STEPS):
        for number in range(4):
            program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=132, sequence=number)
        for _ in range(4):
            for _ in range(3):
                program.run("aten::linear", "aten::addmm", kernel=GEMM, us=50, grid=264)
            if acts:
                program.run("aten::to", "aten::copy_", kernel="Memcpy DtoH (Device -> Pageable)", us=2)
        program.run("aten::item", "aten::_local_scalar_dense", kernel="Memcpy DtoH (Device -> Pinned)", us=2)
        for number in reversed(range(4)):
            program.backward("AddmmBackward0", "aten::mm", kernel=GEMM, us=50, sequence=number)
        program.optimizer()
        program.step()
    found = list(repeated_work.find(program.view()))
    assert [finding.saving.us for finding in found] == ([] if acts else [pytest.approx(12 * 50, rel=0.1)])


SOURCE = """
encoder, prompts, data = made()
for batch in data:
    features = encoder(prompts)
    answers = features @ batch
"""


def labelling(
    folder: Path, source: str = SOURCE, draws: bool = False, sequence: int | None = None
) -> RankView:
    """Steps in which an encoder computes for 200 µs what is then compared with a batch."""
    program, op = Eager(), "aten::native_dropout" if draws else "aten::linear"
    for _ in range(STEPS):
        program.run("aten::select")
        program.run(op, kernel=GEMM, us=200, sequence=sequence)
        program.run("aten::mm", kernel=GEMM, us=100)
        if sequence is not None:
            program.backward("AddmmBackward0", "aten::mm", kernel=GEMM, us=200, sequence=sequence)
            program.optimizer()
        program.step()
    called = ("aten::select", 3), (f"Encoder/{op}", 4), ("aten::mm", 5)
    return with_source(folder, program, source, *called)


def test_what_is_encoded_again_in_each_step_may_be_kept(tmp_path: Path) -> None:
    (finding,) = repeated_work.find(labelling(tmp_path))
    assert finding.title == "Encoder is called once per step, with inputs that nothing in the step changes"
    assert finding.affected_us == pytest.approx(200)
    assert finding.saving.us == pytest.approx(200, rel=0.1)
    assert finding.saving.condition == "its inputs are the same in every step"
    assert finding.source == "program.py:4"


@pytest.mark.parametrize(
    "program",
    [
        {"source": SOURCE.replace("encoder(prompts)", "encoder(batch)")},
        {"draws": True},
        {"sequence": 1},  # it learns
        {"source": ""},  # which is not known
    ],
)
def test_an_encoder_of_what_is_new_is_not_called_anew(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(repeated_work.find(labelling(tmp_path, **program)))


GRAPH = """
model, graph, labels = made()
for epoch in range(9):
    loss = model(graph)[labels].sum()
    with no_grad():
        right = model(graph) == labels
"""


def graph_net(
    folder: Path, source: str = GRAPH, first: tuple[str, ...] = ("aten::index",), starts: int | None = 1
) -> RankView:
    """Steps that train a net and test it; each time it gathers for 200 µs before it has any weight, and as
    long after that."""
    program = Eager()
    for _ in range(STEPS):
        for sequence in (1, None):
            program.run(*first, kernel="index", us=200, sequence=starts if sequence else None)
            program.run("aten::linear", kernel=GEMM, us=100, sequence=sequence)
            program.run("aten::index", kernel="index", us=200, sequence=2 if sequence else None)
            program.run("aten::eq", us=10, sequence=3 if sequence else None)
        for sequence in (2, 1):
            program.backward("AddmmBackward0", "aten::mm", kernel=GEMM, us=100, sequence=sequence)
        program.optimizer()
        program.step()
    of_net = f"Net/{first[0]} aten::linear aten::index"
    called = (of_net, 4), ("aten::eq", 4), (of_net, 6), ("aten::eq", 6)
    return with_source(folder, program, source, *called)


def test_what_a_trained_net_does_before_its_first_weight_may_be_kept(tmp_path: Path) -> None:
    (finding,) = repeated_work.find(graph_net(tmp_path))
    assert "called 2 times per step, with inputs that nothing in the step changes: " in finding.title
    assert finding.affected_us == pytest.approx(2 * 200)  # in its test as well, which begins alike
    assert finding.saving.us == pytest.approx(2 * 200, rel=0.1)
    assert finding.saving.condition == "its inputs are the same in every step"


@pytest.mark.parametrize(
    "program",
    [
        {"source": GRAPH.replace("(graph)", "(part_of(graph))")},
        {"starts": 0},  # autograd records it: it has weights
        {"starts": None},  # autograd is off: of weights, maybe
        {"first": ("aten::detach",)},
        {"first": ("aten::dropout", "aten::native_dropout")},  # another in each step
    ],
)
def test_what_comes_of_weights_is_new(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(repeated_work.find(graph_net(tmp_path, **program)))


def called_twice(first: int | None, second: int | None, op: str = "aten::linear") -> RankView:
    """Steps that call a net twice with the same for 200 µs each, and for 300 µs backward for each call that
    autograd records, under such a number."""
    program = Eager()
    for _ in range(STEPS):
        for sequence in (first, second):
            for one in op.split():
                program.run(one, kernel=GEMM, us=200, sequence=sequence)
            for _ in range(4):
                program.run("aten::eq", us=5)
        for sequence in filter(None, (second, first)):
            program.backward("AddmmBackward0", "aten::mm", kernel=GEMM, us=300, sequence=sequence)
        program.optimizer()
        program.step()
    view = program.view()
    compared = " ".join(["aten::eq"] * 4)
    called = (f"Net/{op}", 4), (compared, 5), (f"Net/{op}", 9), (compared, 9)
    lines = traces.noted(*((name, f"program.py({number}): <module>") for name, number in called))
    steps = StepTimings(found_by="optimizer", same_calls=((0, 1),))
    kept = Manifest(ranks=(RankRecord(rank=0, steps=steps),))
    return RankView(LoadedRun((view.trace,), kept, lines={0: lines}), view.trace)


@pytest.mark.parametrize(
    ("first", "second", "saved_us"),
    [
        (1, None, 200),  # for the accuracy
        (None, 1, 200),  # what it was before it is learned from
        (1, 2, 200 + 300),  # two losses of one net
        (None, None, 200),
    ],
)
def test_a_net_that_is_called_with_the_same_again_is_called_once(
    first: int | None, second: int | None, saved_us: float
) -> None:
    (finding,) = repeated_work.find(called_twice(first, second))
    assert finding.title == "Net is called 2 times per step with the same inputs"
    assert finding.affected_us == pytest.approx(saved_us)
    assert 0.6 * saved_us < finding.saving.us < 1.1 * saved_us  # after the first call the host is ahead
    assert finding.saving.condition is None
    assert finding.source == "program.py:9"


@pytest.mark.parametrize(("first", "second", "found"), [(1, 2, 0), (None, None, 0), (1, None, 1)])
def test_two_calls_that_draw_are_two_samples(first: int | None, second: int | None, found: int) -> None:
    """As those of dropout that are compared with each other; not those of which one is only looked at."""
    assert len(list(repeated_work.find(called_twice(first, second, "aten::native_dropout")))) == found


def test_samples_share_what_comes_before_the_first_random_number() -> None:
    """Dropout in the last layers alone, which are asked several times."""
    (finding,) = repeated_work.find(called_twice(None, None, "aten::linear aten::native_dropout"))
    assert finding.title == (
        "Net is called 2 times per step with the same inputs, and computes the same each time until it first "
        "draws random numbers"
    )
    assert finding.affected_us == pytest.approx(200)


TO_DEVICE, TO_HOST = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


def server(weights: int = 24, learns: bool = False, ways: tuple[str, ...] = (TO_DEVICE,)) -> Eager:
    """Requests for each of which weights are drawn for 5 ms, and copied to the device for 20 µs each, before
    it computes for 1 ms."""
    program = Eager()
    for _ in range(STEPS):
        program.note("aten::uniform_", 5_000)
        for kernel, number in itertools.product(ways, range(weights)):
            program.run("aten::to", "aten::copy_", kernel=kernel, us=20, bytes=(number % 12 + 1) << 16)
        program.run("aten::linear", kernel=GEMM, us=1_000)
        if learns:
            program.optimizer()
        program.step()
    return program


def test_a_model_that_each_request_loads_is_loaded_once() -> None:
    (finding,) = repeated_work.find(server().view())
    assert finding.title == (
        "24 tensors, 10.2 MB, are copied to the device 3 times in 3 steps: a model is loaded anew"
    )
    assert finding.affected_us > 5_000 + 24 * 20
    assert finding.saving.us == pytest.approx(5_000 + 24 * 20, rel=0.1)


def test_weights_that_are_read_to_the_device_and_copied_into_those_of_the_host_are_a_models() -> None:
    """As by ``torch.load(map_location="cuda")`` before ``load_state_dict`` and ``model.cuda()``."""
    view = server(ways=(TO_DEVICE, TO_HOST, TO_DEVICE)).view()
    assert travelling(view).is_empty()
    (finding,) = repeated_work.find(view)
    assert finding.title.startswith("48 tensors, 20.4 MB, are copied to the device 3 times in 3 steps")
    assert finding.saving.us == pytest.approx(5_000 + 72 * 20, rel=0.1)


@pytest.mark.parametrize("program", [server(weights=8), server(learns=True)])
def test_other_tensors_that_are_copied_are_no_model(program: Eager) -> None:
    assert not list(repeated_work.find(program.view()))


SEARCH = """
from torch.nn.utils.rnn import pad_sequence
pages, encoder, asked = made()
for words in asked:
    padded = pad_sequence(pages).to("cuda")
    best = (encoder(words) @ padded).max()
"""


def search(folder: Path, source: str = SEARCH, copies: bool = True, learns: bool = False) -> RankView:
    """Steps that make pages on the host for 300 µs, copy them for 100 µs and compare them with a question."""
    program = Eager()
    for _ in range(STEPS):
        program.note("aten::pad_sequence", 300)
        kernel = "Memcpy HtoD (Pageable -> Device)" if copies else "elementwise_kernel"
        program.run("aten::to", kernel=kernel, us=100, bytes=1_000_000)
        if learns:
            program.run("aten::index", kernel="index", us=100)
            program.optimizer()
        program.run("aten::mm", kernel=GEMM, us=100)
        program.step()
    weights = [("aten::index", 5), ("aten::_foreach_add_", 7)] if learns else []
    called = ("aten::pad_sequence", 5), ("aten::to", 5), *weights, ("aten::mm", 6)
    return with_source(folder, program, source, *called)


def test_what_is_copied_again_in_each_step_may_be_kept_on_the_device(tmp_path: Path) -> None:
    (finding,) = repeated_work.find(search(tmp_path))
    assert finding.title.startswith("Each step makes 1.00 MB on the host and copies it to the device")
    assert finding.affected_us == 100
    assert 300 < finding.saving.us <= 300 + 100  # the copy waits for the host
    assert finding.source == "program.py:5"


@pytest.mark.parametrize(
    "program",
    [
        {"source": SEARCH.replace("pad_sequence(pages)", "pad_sequence(part_of(pages))")},
        {"source": SEARCH.replace("pad_sequence(pages)", "pages.pop()")},
        {"source": SEARCH.replace("from torch.nn.utils.rnn", "from pages")},
        {"copies": False},
        {"learns": True},  # rows of a table, maybe
    ],
)
def test_what_is_new_is_copied(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(repeated_work.find(search(tmp_path, **program)))


TABLES = """
import numpy as np
import torch
model, data = made()
def table(size):
    x = np.linspace(0, 1, size)
    return np.outer(x, x)
for batch in data:
    known = torch.from_numpy(table(512)).to("cuda")
    best = model(batch) @ known
"""


def tabled(folder: Path, source: str = TABLES) -> RankView:
    """Steps that make a table in Python for 400 µs, copy it, and multiply."""
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::mm", kernel=GEMM, us=100)
        program.at += 400
        program.run("aten::to", kernel="Memcpy HtoD (Pageable -> Device)", us=10, bytes=1_000_000)
        program.run("aten::matmul", kernel=GEMM, us=100)
        program.step()
    python = ("", 9), *[("", 6)] * 4, ("", 7)
    functions = {6: "table", 7: "table"}
    ops = ("aten::mm", 10), *python, ("aten::to", 9), ("aten::matmul", 10)
    return with_source(folder, program, source, *ops, functions=functions)


def test_tables_that_python_makes_again_go_with_the_time_that_it_takes(tmp_path: Path) -> None:
    (finding,) = repeated_work.find(tabled(tmp_path))
    assert finding.title.startswith("Each step makes 1.00 MB on the host and copies it to the device")
    assert finding.source == "program.py:9"
    assert finding.saving.us == pytest.approx(340, abs=10)  # 440 until the second product, less the first


@pytest.mark.parametrize("new", ["np.random.rand(size)", "np.linspace(0, 1, size) * data.pop()"])
def test_tables_that_are_new_are_none(tmp_path: Path, new: str) -> None:
    assert not list(repeated_work.find(tabled(tmp_path, TABLES.replace("np.linspace(0, 1, size)", new))))


CORPUS = """
import torch.nn.functional as F
corpus, encoder, asked = made()
for words in asked:
    likely = F.normalize(encoder(words)) @ F.normalize(corpus).T
"""


def cosines(folder: Path, source: str = CORPUS, learns: bool = False) -> RankView:
    """Steps that normalize a question for 4 µs and a corpus for 400 µs, and compare them."""
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::select")
        for us in (1, 100):
            program.run("aten::linalg_vector_norm", kernel="reduce_kernel", us=us)
            program.run("aten::clamp_min", us=us)
            program.note("aten::expand_as")
            program.run("aten::div", us=2 * us)
        program.run("aten::matmul", "aten::mm", kernel=GEMM, us=100)
        if learns:
            program.optimizer()
        program.step()
    normalizes = "aten::linalg_vector_norm", "aten::clamp_min", "aten::expand_as", "aten::div"
    called = [(name, 5) for name in (*normalizes, *normalizes, "aten::matmul aten::mm")]
    weights = [("aten::_foreach_add_", 6)] if learns else []
    return with_source(folder, program, source, ("aten::select", 4), *called, *weights)


def test_a_corpus_is_normalized_once(tmp_path: Path) -> None:
    (finding,) = repeated_work.find(cosines(tmp_path))
    assert finding.title == "Each step normalizes vectors again that nothing in it changes"
    assert finding.affected_us == pytest.approx(400)
    assert finding.saving.us == pytest.approx(400, rel=0.1)
    assert finding.saving.condition == "its inputs are the same in every step"
    assert finding.source == "program.py:5"


@pytest.mark.parametrize(
    "program",
    [
        {"source": CORPUS.replace("(corpus)", "(part_of(corpus))")},
        {"source": CORPUS.replace("F.normalize(encoder(words))", "encoder(words)")},  # not as it was recorded
        {"learns": True},  # the corpus may be a table of weights
    ],
)
def test_other_vectors_are_normalized_in_each_step(tmp_path: Path, program: dict[str, Any]) -> None:
    assert not list(repeated_work.find(cosines(tmp_path, **program)))


def factoring(times: int, dims: list[int], trained: bool = False) -> Eager:
    """Steps that factor a matrix so often, each in 300 µs."""
    program = Eager()
    for _ in range(STEPS):
        for number in range(times):
            ops, sequence = ("aten::linalg_cholesky", "aten::linalg_cholesky_ex"), number if trained else None
            program.run(*ops, kernel="potrf", us=300, dims=[dims, []], sequence=sequence)
        for number in reversed(range(times if trained else 0)):
            program.backward("LinalgCholeskyExBackward0", "aten::mm", sequence=number)
        program.optimizer()
        program.step()
    return program


def test_a_matrix_that_is_factored_again_may_be_factored_once() -> None:
    (finding,) = repeated_work.find(factoring(8, [1200, 1200]).view())
    assert finding.title == (
        "aten::linalg_cholesky factors a matrix of 1200 × 1200 8 times per step, without gradients"
    )
    assert finding.saving.us == pytest.approx(7 * 300, rel=0.05)
    assert finding.saving.condition == "it is the same matrix each time"


@pytest.mark.parametrize(
    "program",
    [
        factoring(2, [1200, 1200]),  # a line search
        factoring(8, [24, 1200, 1200]),  # a stack: they are many, and are factored together
        factoring(8, [1200, 1200], trained=True),  # a layer's own, which the gradients go through
    ],
)
def test_factorizations_that_are_another_each_time_are_no_repeated_work(program: Eager) -> None:
    assert not list(repeated_work.find(program.view()))


def vocoding(trained: bool = False, python_us: float = 0) -> Eager:
    """Steps that normalize the weights of four layers, in 18 µs of the host each and Python around it."""
    program = Eager()
    for _ in range(STEPS):
        for _ in range(4):
            program.at += python_us
            program.run("aten::_weight_norm", "aten::_weight_norm_interface", kernel="weight_norm_fwd", us=3)
            program.at += python_us
            program.run("aten::cudnn_convolution", kernel=GEMM, us=3)
            for _ in range(3):
                program.run("aten::relu", kernel="relu", us=3)
        if trained:
            program.optimizer()
        program.step()
    return program


def test_weights_that_nothing_trains_are_normalized_once() -> None:
    (finding,) = normalized_weights.find(vocoding().view())
    assert (
        finding.title == "Weights are normalized 4 times per step (weight_norm), though nothing trains them"
    )
    assert finding.saving.us == pytest.approx(4 * (18 + 2), rel=0.05)  # with one of the gaps around it
    assert not finding.saving.condition


def test_the_python_that_normalizes_weights_goes_with_it() -> None:
    (finding,) = normalized_weights.find(vocoding(python_us=40).view())
    assert finding.saving.us == pytest.approx(4 * (18 + 2 * 40), rel=0.1)


def test_weights_that_are_trained_are_others_in_each_step() -> None:
    assert not list(normalized_weights.find(vocoding(trained=True).view()))


def compiled(prepared_in: int = STEPS, plans_us: float = 0, waits_us: float = 0) -> Eager:
    """A compiled function of two launches, entered in each step; 1 ms of it prepares a graph. In the run
    that warms up for it an op makes a plan for the new size for so long; what is launched before takes as
    long as what the host does after it, and is waited for in between."""
    program = Eager()
    for number in range(STEPS):
        if waits_us:
            program.run("aten::mm", kernel=GEMM, us=waits_us)
        entered = program.at
        if number < prepared_in:
            program.events.append(traces.host("cudagraphify.get_container", program.at, 1, "user_annotation"))
            program.at += 1
            if waits_us:
                program.number += 1
                call = traces.call("cudaDeviceSynchronize", program.at, waits_us, program.number)
                program.events.append(call)
                program.at += waits_us
            program.at += 999
            program.note("aten::_cudnn_attention_forward", plans_us)
        program.run("aten::addmm", kernel=GEMM)
        program.run("aten::addmm", kernel=GEMM)
        name = "Torch-Compiled Region: 0/1"
        program.events.append(traces.host(name, entered - 0.5, program.at - entered, "user_annotation"))
        program.note("aten::index", waits_us)
        program.step()
    return program


def test_graphs_that_are_prepared_in_each_step() -> None:
    (finding,) = cudagraph_anew.find(compiled().view("module"))
    assert finding.title == "CUDA graphs are prepared anew in 3 of 3 recorded steps"
    assert finding.saving.us == pytest.approx(1000, rel=0.05)


def test_the_run_that_warms_up_for_a_graph_goes_with_its_plans_and_waits() -> None:
    (finding,) = cudagraph_anew.find(compiled(plans_us=3000, waits_us=500).view("module"))
    assert finding.saving.us == pytest.approx(1000 + 3000 + 500, rel=0.05)
    assert "multiples" in finding.advice


def test_a_graph_that_is_prepared_once() -> None:
    assert not list(cudagraph_anew.find(compiled(prepared_in=1).view("module")))


def test_graphs_that_a_program_captures_in_each_step() -> None:
    program = Eager()
    for _ in range(STEPS):
        for name, length in (("cudaStreamBeginCapture", 2), ("cudaStreamEndCapture", 2)):
            program.events.append(traces.host(name, program.at, length, "cuda_runtime"))
            program.at += 500
        program.run("aten::mm", kernel=GEMM)
        program.step()
    (finding,) = cudagraph_anew.find(program.view("module"))
    assert finding.saving.us == pytest.approx(500, rel=0.05)
