"""A loop that generates without a cache: seen by the rows of its norms, and what a cache would leave."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules.no_kv_cache import find
from kinetoscope.sources.run import LoadedRun
from kinetoscope.trace.model import DeviceProperties
from traces import Event, call, host, kernel, step, trace

STEP_US = 760
H200 = DeviceProperties(0, "NVIDIA H200", 150_000_000_000, (9, 0), 132, {})
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>"
PRODUCT = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT"


def generating(rows: list[int], *, norm: str = NORM, extra: str = "", last: int = 0) -> RankView:
    """A pass of two layers for each number of rows; ``last``: rows of its last norm, where it has one."""
    block = [32, 16, 1] if norm == MEAN else [256, 1, 1]
    events: list[Event] = []
    for number, many in enumerate(rows):
        at, calls = number * STEP_US, 10 * number
        events.append(step(number, at, STEP_US))
        kernels = [
            ("aten::layer_norm", norm, 10, many),
            ("aten::mm", PRODUCT, 600, 64),
            ("aten::layer_norm", norm, 10, many),
        ]
        kernels += [("aten::layer_norm", norm, 10, last)] if last else []
        kernels += [("aten::mm", PRODUCT, 100, 64), ("aten::multinomial", "multinomial", 5, 1)]
        start = at + 20
        for place, (op, name, us, blocks) in enumerate(kernels):
            events.append(host(extra or op, at + 10 * place, 8))
            events.append(call("cudaLaunchKernel", at + 10 * place + 2, 3, calls + place + 1))
            events.append(kernel(name, start, us, calls + place + 1, grid=[blocks, 1, 1], block=block))
            start += us
        events.append(call("cudaStreamSynchronize", at + 70, start - at - 68, 0))
    found = replace(trace(*events), devices=(H200,))
    run = LoadedRun((found,))
    return RankView(run, found)


def test_a_cache_leaves_products_their_weights_and_others_the_new_token() -> None:
    (found,) = find(generating([2000, 2004, 2008, 2012]))
    assert found.title.startswith(
        "Each pass computes 500 tokens again to make a token of each of 4 sequences"
    )
    # In bfloat16 an H200 does the arithmetic of 206 rows while it reads the weights.
    product = 600 * (1 - 989e12 * 2 / (2 * 4.8e12) / 2006)
    assert found.affected_us == pytest.approx(620, rel=0.01)
    assert found.saving.condition == "tokens attend to those before them alone"
    assert product < found.saving.us < product + 2 * 7  # short norms wait for their launches


def test_a_last_norm_of_the_newest_token_alone_does_not_hide_it() -> None:
    assert list(find(generating([500, 501, 502, 503], last=1)))
    assert list(find(generating([501, 502, 503, 90, 91, 92])))  # an answer is done, and the next begins


def test_a_norm_that_is_written_out_has_a_row_for_each_row_of_its_blocks() -> None:
    (found,) = find(generating([1280, 1284, 1288, 1292], norm=MEAN))
    assert "computes 320 tokens again to make a token of each of 64 sequences" in found.title


def test_answers_that_are_drawn_for_a_reward_are_seen_in_training() -> None:
    answer = [*range(2000, 2032, 4)]
    backward = "autograd::engine::evaluate_function: MmBackward0"
    assert list(find(generating([*answer, 4000, *answer], extra=backward)))


@pytest.mark.parametrize(
    "rows",
    [
        [4, 4, 4, 4],  # with a cache
        [500, 501],  # too few to say
        [512, 480, 544, 560],  # inputs of any length
        [512, 513, 515, 516],
        [4, 5, 6, 7],  # a short beginning
    ],
)
def test_other_inputs_are_no_such_loop(rows: list[int]) -> None:
    assert not list(find(generating(rows)))


def test_channels_are_no_rows_and_training_is_no_answer() -> None:
    assert not list(find(generating([64, 96, 128, 160], norm="cudnn::bn_fw_inf_1C11_kernel_NCHW")))
    assert not list(
        find(generating([2000, 2004, 2008, 2012], extra="autograd::engine::evaluate_function: M"))
    )
