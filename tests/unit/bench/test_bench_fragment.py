"""The comment above a generated kernel, read as a graph: strict, and never evaluated."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.bench.kernels import generated
from kinetoscope.bench.reference.fragment import (
    Fragment,
    FragmentError,
    FragmentNode,
    Ref,
    Torch,
    Type,
    Word,
    parse,
)

COMMENT = """# Topologically Sorted Source Nodes: [a], Original ATen: [aten.exp]
# Graph fragment:
#   %x : Tensor "f32[4, s77][s77, 1]cuda:0" = PlaceHolder[target=x]
#   %buf3 : Tensor  = PlaceHolder[target=buf3]
#   %exp : Tensor "f32[4, 8][8, 1]cuda:0"[num_users=2] = \
call_function[target=torch.ops.aten.exp.default](args = (%x,), kwargs = {})
#   %var_mean : [num_users=2] = \
call_function[target=torch.ops.aten.var_mean.correction](args = (%exp, [0, -1]), kwargs = {correction: 0, \
keepdim: True})
#   %getitem : Tensor "f32[][]cpu"[num_users=1] = \
call_function[target=operator.getitem](args = (%var_mean, 0), kwargs = {})
#   %full : Tensor "bf16[][]cuda:0"[num_users=1] = \
call_function[target=torch.ops.aten.full.default](args = ([], -inf), kwargs = {dtype: torch.bfloat16, \
device: cuda:0, pin_memory: False})
#   %gelu : Tensor "f32[4, 8][8, 1]cuda:0"[num_users=1] = \
call_function[target=torch.ops.aten.gelu.default](args = (%x, 1e-05, None, (1, 2)), \
kwargs = {approximate: tanh})
#   return %exp,%buf7
"""


def line(args: str, kwargs: str = "{}") -> str:
    call = f"%y : Tensor = call_function[target=torch.ops.aten.add.Tensor](args = {args}, kwargs = {kwargs})"
    return f"# Graph fragment:\n#   {call}\n#   return %y\n"


def test_every_form_of_a_line() -> None:
    found = parse(COMMENT)
    assert found.returns == ("exp", "buf7")
    assert found.placeholders == {"x": Type("f32", (4, None), (None, 1), "cuda:0"), "buf3": None}
    assert found.nodes["var_mean"] == FragmentNode(
        "var_mean",
        "torch.ops.aten.var_mean.correction",
        (Ref("exp"), [0, -1]),
        {"correction": 0, "keepdim": True},
        None,
        users=2,
    )
    assert found.nodes["getitem"].target == "operator.getitem"
    assert found.nodes["full"].args == ([], -math.inf)
    assert found.nodes["full"].kwargs == {
        "dtype": Torch("bfloat16"),
        "device": Word("cuda:0"),
        "pin_memory": False,
    }
    assert found.nodes["gelu"].args == (Ref("x"), 1e-05, None, (1, 2))
    assert found.nodes["gelu"].kwargs == {"approximate": Word("tanh")}
    assert list(found.nodes["gelu"].inputs()) == ["x"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, min_size=2, max_size=3).map(tuple),
    max_leaves=12,
)


@given(st.lists(VALUES, min_size=2, max_size=4).map(tuple))
def test_values_come_back_as_python_prints_them(values: tuple[object, ...]) -> None:
    assert parse(line(repr(values))).nodes["y"].args == values


@pytest.mark.parametrize(
    "args",
    ["(__import__('os'),)", "(1, 2", "(1 2)", "((1,),", "({a: 1},)", "(a.b,)", "(1,))", "(x[0],)", '("a",)'],
)
def test_anything_else_is_refused(args: str) -> None:
    with pytest.raises(FragmentError):
        parse(line(args))


def test_what_is_missing_is_said() -> None:
    with pytest.raises(FragmentError, match="no graph fragment"):
        parse("# kernel path: /tmp/x.py")
    with pytest.raises(FragmentError, match="no end"):
        parse(COMMENT.partition("#   return")[0])
    with pytest.raises(FragmentError, match="not a line"):
        parse("# Graph fragment:\n#   %x = what\n#   return %x")


def test_all_fragments_of_all_logs_parse(shared_data: Path) -> None:
    counts: dict[str, int] = {}
    logs = (shared_data / "compile-logs/mixnet_l_train.log.gz").parent  # where this one is, all are
    for file in sorted(logs.glob("*.gz")):
        for text in gzip.decompress(file.read_bytes()).decode(errors="replace").split("Graph fragment:")[1:]:
            comment = "# Graph fragment:" + text.partition("async_compile")[0]
            found = parse("\n".join(part.strip() for part in comment.splitlines()))
            assert found.returns
            assert all(node.target for node in found.nodes.values())
            counts[file.name] = counts.get(file.name, 0) + 1
    assert counts["mixnet_l_train.log.gz"] == 521
    assert sum(counts.values()) == 541


def test_each_kernel_of_a_module_has_its_own(shared_data: Path) -> None:
    [module] = generated.find(shared_data / "inductor" / "mixnet_l_backward.py.gz")
    fragments: dict[str, Fragment] = {name: parse(k.comment) for name, k in module.kernels.items()}
    assert len(fragments) == 276
    name = "triton_per_fused_native_batch_norm_backward_2"
    assert fragments[name].returns == ("sum_2",)
    assert list(fragments[name].placeholders) == ["buf5"]
