"""Messages of edges, masks and masked positions that are written out at full size and need not be."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from eager import NODE, Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import (
    broadcast_mask,
    gather_scatter,
    masked_attention,
    masked_loss,
    merged_adapters,
)
from kinetoscope.recording.manifest import LossLabels, Manifest, RankRecord, StepTimings

BROADCAST, ITS_OWN = "elementwise_kernel<128, 2, MulFunctor>", "vectorized_elementwise_kernel<4, MulFunctor>"
STEPS = 2


def messages(
    scale: str | None = BROADCAST,
    between: str | None = None,
    sums: float = 200,
    rows: tuple[int, ...] = (900, 900),
    adds: str = "_scatter_gather_elementwise_kernel<ReduceAdd>",
) -> Eager:
    """A layer of a graph net each step: messages of 100 µs are gathered, scaled, and added up."""
    program = Eager()
    for number in rows:
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=50)
        program.run(
            "aten::index_select", "aten::gather", kernel="vectorized_gather_kernel", us=100, grid=number
        )
        if between:
            program.run(between, kernel="sm90_gemm", us=100)
        if scale:
            program.run("aten::mul", kernel=scale, us=120)
        program.run("aten::new_zeros", "aten::zero_", "aten::fill_", kernel="FillFunctor", us=4)
        program.run("aten::scatter_add_", kernel=adds, us=sums)
        program.step()
    return program


def test_messages_of_edges_are_a_sparse_product() -> None:
    (finding,) = gather_scatter.find(messages().view())
    assert finding.title.startswith("Rows are gathered, scaled and added up 1 time per step")
    assert finding.saving.us == pytest.approx(100 / 2 + 120 + 200, rel=0.1)
    assert "sparse matrix" in finding.advice


def test_sums_of_rows_that_are_not_scaled_are_one_too() -> None:
    (finding,) = gather_scatter.find(messages(scale=None).view())
    assert finding.saving.us == pytest.approx(100 / 2 + 200, rel=0.1)


def test_gradients_of_gathered_rows_are_added_up_after_their_indices_are_sorted() -> None:
    program, put = Eager(), "aten::_index_put_impl_"
    for _ in range(STEPS):
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=50)
        with program.around(f"{NODE}IndexAddBackward0", tid=2):
            program.run("aten::gather", kernel="vectorized_gather_kernel", us=100, grid=900, tid=2)
        with program.around(f"{NODE}MulBackward0", tid=2):
            program.run("aten::mul", kernel=BROADCAST, us=120, tid=2)
        with program.around(f"{NODE}IndexBackward0", tid=2):
            program.run("aten::new_zeros", "aten::fill_", kernel="FillFunctor", us=4, tid=2)
            program.run(put, "aten::mul", kernel=ITS_OWN, us=5, tid=2)  # of numbers of rows
            program.run(put, kernel="DeviceRadixSortOnesweepKernel", us=20, tid=2)
            program.run(put, kernel="indexing_backward_kernel", us=300, tid=2)
        program.step()
    (finding,) = gather_scatter.find(program.view())
    assert finding.saving.us == pytest.approx(100 / 2 + 120 + 5 + 20 + 300, rel=0.1)


def test_edges_that_differ_from_step_to_step_promise_nothing() -> None:
    (finding,) = gather_scatter.find(messages(rows=(900, 700)).view())
    assert finding.saving.us == 0
    assert finding.saving.most_us > 300


@pytest.mark.parametrize(
    "program",
    [
        messages(scale=ITS_OWN),  # a factor for each element: a net's filter
        messages(between="aten::addmm"),  # the messages are computed
        messages(adds="_scatter_gather_elementwise_kernel<ReduceMaximum>"),
        messages(sums=2),  # what is added up are not the rows that were gathered
    ],
)
def test_other_gathers_and_sums_are_no_sparse_product(program: Eager) -> None:
    assert not list(gather_scatter.find(program.view()))


def test_rows_of_experts_that_are_weighed_and_added_are_no_chain() -> None:
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::linear", "aten::mm", kernel="sm90_gemm", us=100)
        program.run("aten::index", kernel="index_elementwise_kernel", us=20, grid=2)  # their weights
        program.run("aten::mul", kernel=BROADCAST, us=100, grid=400)
        program.run("aten::index_add_", kernel="index_add", us=100, grid=400)
        program.step()
    assert not list(gather_scatter.find(program.view()))


def test_a_lookup_and_an_unrelated_sum_are_no_chain() -> None:
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::embedding", "aten::index_select", kernel="gather", us=100)
        program.run("aten::addmm", kernel="sm90_gemm", us=100)
        program.run("aten::index_add_", kernel="index_add", us=100)
        program.step()
    assert not list(gather_scatter.find(program.view()))


def selection(expanded: bool = True) -> Eager:
    """Logits are selected by a mask each step, forward and back."""
    program = Eager()
    search, copy = "aten::nonzero", ("aten::contiguous", "aten::clone", "aten::copy_")
    for _ in range(STEPS):
        with program.around("aten::masked_select"):
            if expanded:
                program.run(search, *copy, us=40)
            program.run(search, kernel="DeviceSelectSweepKernel", us=70)
            program.run(search, kernel="write_indices", us=190)
            program.run("aten::index", kernel="index_elementwise_kernel", us=200)
        with program.around(f"{NODE}MaskedSelectBackward0", "aten::masked_select_backward", tid=2):
            if expanded:
                program.run(*copy, us=40, tid=2)
            program.run("aten::masked_scatter_", kernel="DeviceScanKernel", us=110, tid=2)
            program.run("aten::masked_scatter_", kernel="masked_scatter", us=80, tid=2)
        program.step()
    return program


def test_an_expanded_mask_is_advised_to_select_rows() -> None:
    (finding,) = broadcast_mask.find(selection().view())
    assert finding.title.startswith("A mask of rows is written out for each element 1 time per step")
    assert finding.saving.us == pytest.approx(40 + 70 + 190 + 200 / 2 + 40 + 110, rel=0.15)
    assert "index_select" in (finding.snippet or "")


def test_a_mask_of_each_element_is_as_it_should_be() -> None:
    assert not list(broadcast_mask.find(selection(expanded=False).view()))


def head(
    loss: str = "nll_loss_forward_no_reduce_cuda_kernel", after: str = "aten::mul", network: float = 50
) -> Eager:
    """A network, and a head whose loss is masked."""
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=network, sequence=1)
        program.run("aten::relu", us=5, sequence=2)
        program.run("aten::matmul", "aten::mm", kernel="sm90_gemm", us=500, sequence=3)
        program.run(
            "aten::cross_entropy_loss", "aten::_log_softmax", kernel="cunn_SoftMaxForward", us=250, sequence=4
        )
        program.run("aten::cross_entropy_loss", "aten::nll_loss_forward", kernel=loss, us=3, sequence=5)
        program.run(after, us=3, sequence=6)
        program.backward("LogSoftmaxBackward0", "aten::_log_softmax_backward_data", sequence=4, us=300)
        program.backward("MmBackward0", "aten::mm", kernel="sm90_gemm", sequence=3, us=800)
        program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=1, us=network)
        program.step()
    return program


def test_a_masked_loss_names_what_its_head_takes_and_promises_nothing() -> None:
    (finding,) = masked_loss.find(head().view())
    assert "padding" in finding.title
    assert finding.affected_us == pytest.approx(500 + 250 + 3 + 300 + 800, rel=0.01)
    assert (finding.saving.us, finding.at_least) == (0, "low")
    assert finding.saving.most_us == pytest.approx(finding.affected_us, rel=0.1)


@pytest.mark.parametrize(
    "program",
    [
        head(loss="nll_loss_forward_reduce_cuda_kernel_2d"),  # the mean of all: ignored labels are its own
        head(after="aten::mean"),  # each position counts
        head(network=50_000),  # the head is next to nothing
    ],
)
def test_a_loss_that_is_not_masked_or_small_is_none(program: Eager) -> None:
    assert not list(masked_loss.find(program.view()))


ROWS, OF_A_BLOCK = 25_600, 256


def drawn(
    blocks: int = ROWS // OF_A_BLOCK,
    compared: str | None = "aten::lt",
    chosen: str = "aten::where",
    loss: str = "nll_loss_forward_reduce_cuda_kernel_2d",
    network: float = 50,
) -> Eager:
    """A step that draws which places it hides, and whose loss is a mean over labels."""
    program = Eager()
    for _ in range(STEPS):
        program.run("aten::uniform_", kernel="distribution_elementwise_grid_stride_kernel", grid=blocks, us=2)
        if compared:
            program.run(compared, us=1)
        program.run("aten::fill_", us=1)
        program.run(chosen, us=2)
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=network, sequence=1)
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=500, sequence=2)
        program.run("aten::_log_softmax", kernel="cunn_SoftMaxForward", us=250, grid=ROWS, sequence=3)
        program.run("aten::nll_loss_forward", kernel=loss, us=3, grid=1, sequence=4)
        program.backward("LogSoftmaxBackward0", "aten::_log_softmax_backward_data", sequence=3, us=300)
        program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=2, us=800)
        program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=1, us=network)
        program.step()
    return program


def test_a_loss_of_places_that_the_step_draws_says_what_the_others_take() -> None:
    (finding,) = masked_loss.find(drawn().view())
    assert "draws" in finding.title
    assert finding.affected_us == pytest.approx(500 + 250 + 3 + 300 + 800, rel=0.01)
    assert "15.0 %" in finding.saving.condition
    assert finding.saving.us == pytest.approx(0.85 * finding.affected_us, rel=0.02)


@pytest.mark.parametrize(
    "program",
    [
        drawn(blocks=1),  # one number for each text
        drawn(blocks=2 * ROWS // OF_A_BLOCK),  # for something else
        drawn(compared=None),  # noise
        drawn(chosen="aten::mul"),  # a dropout
        drawn(network=50_000),  # the head is next to nothing
    ],
)
def test_a_loss_of_all_places_is_not_masked(program: Eager) -> None:
    assert not list(masked_loss.find(program.view()))


def labelled(labels: LossLabels, rows: int = ROWS, by_hand: bool = False, number: int = 1) -> RankView:
    """A language model whose recording counted the labels of a step: with torch's loss, or its own."""
    program = Eager()
    for _ in range(STEPS):
        for _ in range(number):
            program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=100, sequence=1)
            program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=500, sequence=2)
            program.note("aten::slice")  # numbered 3
            program.run("aten::_log_softmax", kernel="cunn_SoftMaxForward", us=250, grid=rows, sequence=4)
            if by_hand:
                program.run("aten::clamp", us=2)
                program.run("aten::gather", us=3, sequence=5)
            else:
                program.run("aten::nll_loss_forward", kernel="nll_loss_forward_reduce", us=3, sequence=5)
            program.backward("LogSoftmaxBackward0", "aten::_log_softmax_backward_data", sequence=4, us=300)
            program.backward("SliceBackward0", "aten::copy_", sequence=3, us=200)
            program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=2, us=800)
            program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=1, us=100)
        program.step()
    view = program.view()
    record = RankRecord(rank=0, steps=StepTimings(found_by="optimizer", labels=labels))
    return RankView(replace(view.run, manifest=Manifest(ranks=(record,))), view.trace)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("by_hand", [False, True])
def test_of_ignored_labels_the_head_and_the_loss_go(by_hand: bool, number: int) -> None:
    labels = LossLabels(number * ROWS, ignored=number * ROWS * 3 // 4, tables=number)
    (finding,) = masked_loss.find(labelled(labels, by_hand=by_hand, number=number))
    assert finding.title.startswith("75.0 % of the labels are ignored")
    head = number * (500 + 250 + 3 + 300 + 200 + 800)
    assert finding.affected_us == pytest.approx(head, rel=0.01)
    assert finding.saving.us == pytest.approx(0.75 * head, rel=0.02)
    assert not finding.saving.condition


def test_a_shifted_table_of_labels_is_as_long() -> None:
    (finding,) = masked_loss.find(labelled(LossLabels(ROWS + 50, ROWS // 2, 1), by_hand=True))
    assert finding.saving.us > 1000


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("ignored", "rows"),
    [
        (ROWS // 20, ROWS),  # next to none
        (ROWS * 3 // 4, ROWS // 4),  # those that count were chosen before
    ],
)
def test_a_head_of_labels_that_count_is_as_it_should_be(ignored: int, rows: int, by_hand: bool) -> None:
    assert not list(masked_loss.find(labelled(LossLabels(ROWS, ignored, 1), rows, by_hand)))


def requests(
    layers: int = 12,
    product: tuple[str, ...] = ("aten::matmul", "aten::mm"),
    taken_out: tuple[str, int] = ("aten::sub_", 4000),
    others: int = 0,
) -> Eager:
    """Each step merges an adapter into the weights, answers, and takes it out; other threads do the same."""
    program = Eager()
    scaled = "vectorized_elementwise_kernel<MulFunctor>"

    def change(op: str, grid: int) -> None:
        for _ in range(layers):
            program.run(*product, kernel="sm90_gemm_thin", us=230, grid=66)
            program.run("aten::mul", kernel=scaled, us=430, grid=4000)
            program.run(op, kernel="CUDAFunctor_add", us=630, grid=grid)

    for _ in range(STEPS):
        change("aten::add_", 4000)
        for _ in range(layers):
            program.run("aten::linear", "aten::matmul", "aten::mm", kernel="sm90_gemm_wide", us=500)
            program.run("aten::add_", kernel="CUDAFunctor_add", us=5, grid=40)  # what the layer was given
        change(*taken_out)
        for _ in range(2 * layers * others):
            program.run(kernel="sm90_gemm_thin", us=230, grid=66, tid=2)
            program.run(kernel=scaled, us=430, grid=4000, tid=2)
            program.run(kernel="CUDAFunctor_add", us=630, grid=4000, tid=2)
            program.run(kernel="sm90_gemm_wide", us=500, tid=2)
        program.step()
    return program


@pytest.mark.parametrize("others", [0, 3])
def test_adapters_that_are_merged_for_each_request_are_advised_to_stay_by_the_side(others: int) -> None:
    (finding,) = merged_adapters.find(requests(others=others).view(found_by="module"))
    number = 12 * (1 + others)
    assert f": {number} products are added in place and subtracted per step" in finding.title
    assert finding.affected_us == pytest.approx(2 * number * (230 + 430 + 630))
    assert finding.saving.us == pytest.approx(2 * number * (227 + 427 + 627), rel=0.03)
    assert "by the side" in finding.advice


@pytest.mark.parametrize(
    "program",
    [
        requests(layers=9),
        requests(product=("aten::linear", "aten::matmul", "aten::mm")),  # residual sums and differences
        requests(taken_out=("aten::sub_", 2000)),  # of something else
        requests(taken_out=("aten::add_", 4000)),
    ],
)
def test_other_sums_in_place_are_no_merged_adapters(program: Eager) -> None:
    assert not list(merged_adapters.find(program.view(found_by="module")))


def test_variables_of_a_solver_that_are_moved_in_turn_are_no_weights() -> None:
    program = Eager()
    for _ in range(STEPS):
        for op in ("aten::add_", "aten::sub_") * 20:
            program.run("aten::matmul", "aten::mm", kernel="sm90_gemm", us=230)
            program.run(op, kernel="CUDAFunctor_add", us=630)
        program.step()
    assert not list(merged_adapters.find(program.view(found_by="module")))


def test_weights_that_a_program_trains_may_be_merged() -> None:
    program = requests()
    program.optimizer()
    program.step()
    assert not list(merged_adapters.find(program.view()))


def long_texts(mask: int | None = 131_072, us: float = 800) -> Eager:
    """A layer of attention each step whose mask, a number for each pair, is written by so many blocks."""
    program = Eager()
    call = "aten::scaled_dot_product_attention"
    for _ in range(STEPS):
        program.run("aten::linear", "aten::addmm", kernel="sm90_gemm", us=2000, sequence=1)
        with program.around(call):
            if mask:
                program.run("aten::where", us=150, grid=mask)
            name = "aten::_scaled_dot_product_cudnn_attention"
            program.run(name, kernel="cudnn_sdpa_flash_fprop", us=us, sequence=2)
        program.backward(
            "ScaledDotProductCudnnAttentionBackward0", sequence=2, kernel="flash_bprop", us=2.5 * us
        )
        program.backward("AddmmBackward0", "aten::mm", kernel="sm90_gemm", sequence=1, us=4000)
        program.step()
    return program


def test_a_mask_of_all_pairs_may_leave_out_most() -> None:
    (finding,) = masked_attention.find(long_texts().view())
    assert finding.title == "Attention computes all pairs of positions 1 time per step, with a mask"
    assert finding.affected_us == pytest.approx(150 + 800 + 2000)
    assert finding.saving.us == pytest.approx(150 + 400 + 1000, rel=0.01)
    assert "a quarter of the pairs" in finding.saving.condition
    assert "FlexAttention" in finding.advice


@pytest.mark.parametrize("program", [long_texts(mask=None), long_texts(mask=16), long_texts(us=20)])
def test_attention_without_a_large_mask_or_of_little_time_is_left_in_peace(program: Eager) -> None:
    assert not list(masked_attention.find(program.view()))
