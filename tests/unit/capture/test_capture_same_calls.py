"""Calls of a model with the same inputs and weights are noted, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kinetoscope.capture.recorder.lines import Lines  # noqa: E402
from kinetoscope.capture.steps.padding import PaddingGiven  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor = torch.nn.Linear(4, 4), 2.0

    def forward(self, x: Any, *others: Any, **named: Any) -> Any:
        return super().__repr__() and self.layer(x) * self.factor


class Bag:
    def __init__(self, x: Any) -> None:
        self.x = x


def noted(step: Callable[[Net, Any], object], x: Any) -> Lines:
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    net = Net()
    lines = Lines(lambda file: file == __file__, PaddingGiven())
    lines.start(None)
    step(net, x)
    lines.stop()
    return lines


def same(step: Callable[[Net, Any], object]) -> list[tuple[int, int]]:
    """The calls of a step that repeat another one."""
    return noted(step, torch.randn(8, 4)).same.found


def steps(optimizer: type, **named: Any) -> Callable[[Net, Any], object]:
    def step(net: Net, x: Any) -> None:
        update = optimizer(net.parameters(), **named)
        net(x).sum().backward()
        update.step()
        net(x)

    return step


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: (net(x), net(x)),
        lambda net, x: (net(x[:2]), net(x[:2])),
        lambda net, x: (net(x, bias={"a": [x, 1.5]}), net(x, bias={"a": [x, 1.5]})),
        lambda net, x: (net(x, bag := Bag(x)), net(x, bag)),
        lambda net, x: (net(x).sum().backward(), net(x)),  # gradients are no weights
        lambda net, x: (net(x), torch.no_grad()(net)(x)),
    ],
)
def test_a_call_with_the_same_is_noted(step: Callable[[Net, Any], object]) -> None:
    assert same(step)[0] == (0, 2)  # the second is a layer's


def test_calls_in_inference_mode_are_the_same_unless_what_counts_no_writes_was_written() -> None:
    net = torch.inference_mode()(lambda: Net())()

    def step(_: Net, x: Any) -> None:
        with torch.inference_mode():
            y = x + 1
            net(y)
            net(y)
        net(x)
        torch.no_grad()(net)(x)

    lines = noted(step, torch.randn(8, 4))
    assert lines.same.found == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert lines.same.uncounted == [2, 3, 6, 7]


def test_each_call_is_compared_with_the_first_of_its_sort() -> None:
    def step(net: Net, x: Any) -> None:
        for one in (x, x + 1, x, x):
            net(one)

    assert [pair for pair in same(step) if pair[1] % 2 == 0] == [(0, 4), (0, 6)]


def test_a_part_that_is_called_alone_and_in_its_module_is_noted_once() -> None:
    """A teacher that is asked for its features, and then for its answers."""

    def step(net: Net, x: Any) -> None:
        net.layer(x)
        net(x)
        net(x)

    assert same(step) == [(0, 2), (1, 3), (0, 4)]


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: (net(x), net(x.clone())),
        lambda net, x: (net(x[:2]), net(x[2:4])),
        lambda net, x: (net(x), net(x.add_(1))),
        lambda net, x: (net(x[:2]), x.add_(1), net(x[:2])),
        lambda net, x: (net(x), Net()(x)),
        lambda net, x: (net(x), net.eval()(x)),
        lambda net, x: (net(x, 1), net(x, 2)),
        lambda net, x: (net(x, scale=1), net(x)),
        lambda net, x: (net(x), torch.nn.init.zeros_(net.layer.weight), net(x)),
        steps(torch.optim.SGD, lr=0.1),
        steps(torch.optim.SGD, lr=0.1, foreach=True),
        steps(torch.optim.AdamW, foreach=True),
        steps(torch.optim.AdamW, fused=True),
    ],
)
def test_other_inputs_and_other_weights_are_not_the_same(step: Callable[[Net, Any], object]) -> None:
    assert [pair for pair in same(step) if pair[1] % 2 == 0] == []  # every second call is its layer's


def test_an_input_whose_memory_another_one_got_is_not_the_same() -> None:
    def step(net: Net, x: Any) -> None:
        for number in range(64):
            net(x + number)

    assert same(step) == []


def test_what_was_compared_may_be_swapped() -> None:
    """Tensors that weak references lead to may not; parameters are swapped while a step is noted, too."""
    x, weights = torch.randn(8, 4), torch.nn.Parameter(torch.randn(8, 4))

    def step(net: Net, x: Any) -> None:
        net(x)
        net(weights)
        torch.utils.swap_tensors(weights, torch.nn.Parameter(torch.zeros(8, 4)))

    lines = noted(step, x)
    assert lines.same.found == []
    torch.utils.swap_tensors(x, torch.zeros(8, 4))
    assert not x.any()
