"""Kernels that Inductor compiles here, for the CPU, against the graph fragments of which they were made.

C++ kernels carry no fragment; the tests have Inductor write the one that Triton kernels get.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from kinetoscope.bench.kernels import generated, replica, subjects  # noqa: E402
from kinetoscope.bench.kernels.subjects import Subject  # noqa: E402
from kinetoscope.bench.kernels.timing import check  # noqa: E402
from kinetoscope.bench.reference import agreement  # noqa: E402
from kinetoscope.bench.reference.agreement import Agreement, output_error  # noqa: E402


def write_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.utils import get_kernel_metadata
    from torch._inductor.virtualized import V

    define_kernel = CppScheduling.define_kernel

    def with_fragment(self: Any, source: str, nodes: Any, *rest: Any) -> str:
        wrapper = V.graph.wrapper_code
        comment = "\n".join(get_kernel_metadata(nodes, wrapper))

        def define(name: str, body: str, metadata: str | None = None, **keywords: Any) -> None:
            type(wrapper).define_kernel(wrapper, name, body, comment, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wrapper, "define_kernel", define)
            return define_kernel(self, source, nodes, *rest)

    monkeypatch.setattr(CppScheduling, "define_kernel", with_fragment)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Subject]]:
    """A function's kernels, forward and (where a floating input can have one) backward."""
    from torch._inductor import config

    def compile_and_find(function: Callable[..., Any], *inputs: Any, backward: bool = False) -> list[Subject]:
        write_fragments(monkeypatch)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        torch._dynamo.reset()
        given = [x.requires_grad_() if backward and x.is_floating_point() else x for x in inputs]
        with config.patch(force_disable_caches=True):
            out = torch.compile(function, dynamic=False)(*given)
            if backward:
                out.float().sum().backward()
        found, problems = subjects.find(tmp_path)
        assert not problems
        return found

    return compile_and_find


def judged(subject: Subject) -> Agreement:
    return check(subject, replica.Replica(subject.kernel), "cpu")


NORM = torch.nn.LayerNorm(64)
BATCH_NORM = torch.nn.BatchNorm2d(8)
TABLE = torch.nn.Embedding(50, 16)


def rotary(x: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    q, k, _ = x.chunk(3, -1)

    def rotate(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return rotate(q), rotate(k)


# A compiler of C++ takes seconds for each; these have little that the others have not.
BY_HAND = {"a large sum", "batch norm", "cat", "embedding", "gather", "in place", "layer norm", "softmax"}
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], bool]] = {
    "pointwise": (lambda x, y: torch.sin(x) * y + 1, lambda: (torch.randn(30, 40), torch.randn(40)), True),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (torch.randn(12, 40),), True),
    "layer norm": (lambda x: NORM(x) + x, lambda: (torch.randn(4, 10, 64),), True),
    "batch norm": (lambda x: torch.relu(BATCH_NORM(x)), lambda: (torch.randn(4, 8, 6, 6),), True),
    "cat": (
        lambda x, y: torch.cat([x.relu(), y * 2], 1),
        lambda: (torch.randn(4, 8), torch.randn(4, 5)),
        True,
    ),
    "rotary embedding": (
        rotary,
        lambda: (torch.randn(2, 10, 3 * 64), torch.randn(10, 32), torch.randn(10, 32)),
        False,
    ),
    "embedding": (lambda i: TABLE(i) * 2, lambda: (torch.randint(0, 50, (7, 9)),), True),
    "gather": (
        lambda x, i: (x.gather(1, i) + 1, x[i[:, 0]]),
        lambda: (torch.randn(6, 9), torch.randint(0, 6, (6, 3))),
        False,
    ),
    "reductions": (
        lambda x: (x.sum(0), x.amax(1), x.mean(), x.var(1), x.argmax(-1)),
        lambda: (torch.randn(20, 30),),
        False,
    ),
    "a large sum": (lambda x: x.sum(), lambda: (torch.randn(1 << 20),), False),
    "bfloat16": (
        lambda x, y: functional.gelu(x, approximate="tanh") * (x * y).sum(-1, keepdim=True),
        lambda: (torch.randn(16, 200).bfloat16(), torch.randn(16, 200).bfloat16()),
        False,
    ),
    "in place": (lambda x: x.add_(1) * 2, lambda: (torch.randn(8, 8),), False),
    "cross entropy": (
        functional.cross_entropy,
        lambda: (torch.randn(8, 10), torch.randint(0, 10, (8,))),
        True,
    ),
}
# Sums before a mean's division, and a variance before its own, are no node of the graph.
PARTLY = {"layer norm", "batch norm"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in BY_HAND else []) for name in CASES]
)
def test_what_inductor_compiles_agrees_with_its_graph(
    name: str, compiled: Callable[..., list[Subject]]
) -> None:
    function, inputs, backward = CASES[name]
    torch.manual_seed(0)
    subjects = compiled(function, *inputs(), backward=backward)
    assert len(subjects) >= 1 + backward
    for subject in subjects:
        found = judged(subject)
        assert found.status == "agrees", (subject.kernel.name, found)
        assert found.checked == found.outputs or (name in PARTLY and found.checked >= found.outputs - 1)
        assert found.largest_error is not None


def test_a_wrong_kernel_is_convicted(compiled: Callable[..., list[Subject]]) -> None:
    [subject] = compiled(lambda x, y: (x * 3.0 + y, (x - y).sum(1)), torch.randn(40, 32), torch.randn(40, 32))
    assert judged(subject).status == "agrees"
    for right, wrong in (("3.0", "3.01"), (" - ", " + ")):
        source = subject.kernel.source.replace(right, wrong)
        assert source != subject.kernel.source
        found = judged(subject._replace(kernel=subject.kernel._replace(source=source)))
        assert found.status == "differs"
        assert found.text.startswith("DIFFERS from its graph")
        assert found.largest_error is not None
        assert found.eager_error is not None
        assert found.largest_error > 100 * found.eager_error


def test_random_numbers_are_not_checked(compiled: Callable[..., list[Subject]]) -> None:
    [subject] = compiled(lambda x: functional.dropout(x, 0.5, True), torch.randn(10, 10))
    found = judged(subject)
    assert found.status == "not checked"
    assert "random" in found.text


def test_a_kernel_without_a_fragment_is_not_checked(compiled: Callable[..., list[Subject]]) -> None:
    [subject] = compiled(torch.sin, torch.randn(10))
    found = judged(subject._replace(kernel=subject.kernel._replace(comment="")))
    assert (found.status, found.text) == ("not checked", "not checked: the kernel has no graph fragment")
    strange = subject.kernel.comment.replace("torch.ops.aten.sin.default", "torch.ops.mine.sin.default")
    found = judged(subject._replace(kernel=subject.kernel._replace(comment=strange)))
    assert found.text == "not checked: torch.ops.mine.sin.default is no operation of ATen"


def test_a_fragment_calls_nothing_but_operators() -> None:
    comment = """# Graph fragment:
#   %x : Tensor "f32[3][1]cpu" = PlaceHolder[target=x]
#   %y : Tensor "f32[3][1]cpu"[num_users=1] = \
call_function[target=operator.attrgetter](args = (%x,), kwargs = {})
#   return %y"""
    x = torch.ones(3)
    found = agreement.check(comment, ("in_ptr0", "out_ptr0"), ["out_ptr0"], [x, x], [x, x], "cpu")
    assert found.status == "not checked"


def test_rounding_is_excused_and_no_more() -> None:
    torch.manual_seed(1)
    exact = torch.randn(100_000, dtype=torch.float64)
    eager = exact.float()
    assert output_error(eager.clone(), eager, exact).agrees
    assert output_error(eager * (1 + 2e-6), eager, exact).agrees
    assert not output_error(eager * (1 + 1e-3), eager, exact).agrees
    one_wrong = eager.clone()
    one_wrong[7] += 1  # a share of 1e-5 may lie beyond: of 100,000 elements one, no more
    two_wrong = one_wrong.clone()
    two_wrong[8] += 1
    assert not output_error(two_wrong, eager, exact).agrees
    broken = eager.clone()
    broken[3] = float("nan")
    assert not output_error(broken, eager, exact).agrees
    # bfloat16 has three digits; the same deviation is rounding there.
    assert output_error((exact * (1 + 1e-3)).bfloat16(), exact.bfloat16(), exact).agrees
    assert not output_error((exact * 1.05).bfloat16(), exact.bfloat16(), exact).agrees
    whole = torch.arange(1000)
    assert output_error(whole, whole, whole).agrees
    assert not output_error(whole + (whole == 5), whole, whole).agrees


def test_a_module_that_is_here_keeps_the_comment_of_each_kernel(tmp_path: Path) -> None:
    (tmp_path / "cabc.py").write_text(
        "from torch._inductor.async_compile import AsyncCompile\nasync_compile = AsyncCompile()\n\n"
        "# Graph fragment:\n#   return %a\na = async_compile.triton('a', '''x''')\n"
        "b = async_compile.triton('b', '''x''')\nasync_compile.wait(globals())\n"
    )
    [module] = generated.find(tmp_path)
    assert module.kernels["a"].comment == "# Graph fragment:\n#   return %a"
    assert module.kernels["b"].comment == ""


SQUARES = """# Graph fragment:
#   %x : Tensor "f32[6, 4][4, 1]cpu" = PlaceHolder[target=x]
#   %getitem_1 : Tensor "f32[1, 4][4, 1]cpu" = PlaceHolder[target=getitem_1]
#   %buf2 : Tensor "f32[1, 4][4, 1]cpu" = PlaceHolder[target=buf2]
#   %var_mean : [num_users=2] = \
call_function[target=torch.ops.aten.var_mean.correction](args = (%x, [0]), kwargs = {correction: 0, \
keepdim: True})
#   %add : Tensor "f32[1, 4][4, 1]cpu"[num_users=1] = \
call_function[target=torch.ops.aten.add.Tensor](args = (%getitem, 1e-05), kwargs = {})
#   %rsqrt : Tensor "f32[1, 4][4, 1]cpu"[num_users=1] = \
call_function[target=torch.ops.aten.rsqrt.default](args = (%add,), kwargs = {})
#   %sub : Tensor "f32[6, 4][4, 1]cpu"[num_users=1] = \
call_function[target=torch.ops.aten.sub.Tensor](args = (%x, %getitem_1), kwargs = {})
#   %mul : Tensor "f32[6, 4][4, 1]cpu"[num_users=1] = \
call_function[target=torch.ops.aten.mul.Tensor](args = (%sub, %rsqrt), kwargs = {})
#   return %mul"""


def test_a_variance_may_come_as_a_sum_of_squares_and_a_guess_convicts_nobody() -> None:
    x, mean, squares = torch.randn(6, 4), torch.randn(1, 4), torch.rand(1, 4) + 1
    right = (x - mean) * torch.rsqrt(squares / 6 + 1e-05)
    names = ("in_ptr0", "in_ptr1", "in_ptr2", "out_ptr0")
    before = [x, mean, squares, torch.zeros(6, 4)]
    found = agreement.check(SQUARES, names, ["out_ptr0"], before, [*before[:3], right], "cpu")
    assert found.status == "agrees"
    found = agreement.check(SQUARES, names, ["out_ptr0"], before, [*before[:3], right * 1.1], "cpu")
    assert found.status == "not checked"


def test_two_steps_of_a_sum_and_of_a_variance() -> None:
    x = torch.randn(8, 5, 3)
    call = "call_function[target=torch.ops.aten.sum.dim_IntList](args = (%x, [0, 1]), kwargs = {})"
    total = f'#   %sum_1 : Tensor "f32[3][1]cpu"[num_users=1] = {call}'
    whole = '#   %x : Tensor "f32[8, 5, 3][15, 3, 1]cpu" = PlaceHolder[target=x]'
    first = f"# Graph fragment:\n{whole}\n{total}\n#   return %buf5"
    partial = x.sum(0).t().contiguous()
    names = ("in_ptr0", "out_ptr0")
    found = agreement.check(first, names, ["out_ptr0"], [x, partial], [x, partial], "cpu")
    assert (found.status, found.checked) == ("agrees", 1)
    buffer = '#   %buf5 : Tensor "f32[3, 5][5, 1]cpu" = PlaceHolder[target=buf5]'
    second = f"# Graph fragment:\n{buffer}\n{total}\n#   return %sum_1"
    found = agreement.check(second, names, ["out_ptr0"], [partial, x], [partial, partial.sum(1)], "cpu")
    assert found.status == "agrees"
    parts = x.reshape(8, 15).t().contiguous()
    variance = (
        "#   %var_mean : [num_users=2] = call_function[target=torch.ops.aten.var_mean.correction]"
        "(args = (%x, [0, 1, 2]), kwargs = {correction: 0, keepdim: False})"
    )
    comment = f"# Graph fragment:\n{whole}\n{variance}\n#   return %buf1,%buf2,%buf3"
    means, counts = parts.mean(1), torch.full((15,), 8.0)
    squares = ((parts - means[:, None]) ** 2).sum(1)
    written = ["out_ptr0", "out_ptr1", "out_ptr2"]
    after = [x, means, squares, counts]
    found = agreement.check(comment, ("in_ptr0", *written), written, after, after, "cpu")
    assert (found.status, found.checked) == ("agrees", 3)
