"""What the partitioner cut, by the texts of both graphs."""

from __future__ import annotations

import pytest

from kinetoscope.compilation import fx

FORWARD = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4, 8][8, 1]cpu", primals_2: "Sym(s0)"):
        sin: "f32[4, 8][8, 1]cpu" = torch.ops.aten.sin.default(primals_1);  primals_1 = None
        exp: "f32[4, 8][8, 1]cpu" = torch.ops.aten.exp.default(sin)
        view: "f32[32][1]cpu" = torch.ops.aten.view.default(exp, [32]);  exp = None
        neg: "f32[32][1]cpu" = torch.ops.aten.neg.default(view)
        split = torch.ops.aten.split.Tensor(sin, 4, 1)
        getitem: "f32[4, 4][8, 1]cpu" = split[0];  split = None
        cos: "bf16[4, s0][s0, 1]cpu" = torch.ops.prims.convert_element_type.default(sin, torch.bfloat16)
        other: "f32[4, 8][8, 1]cpu" = torch.ops.aten.cos.default(sin);  sin = None
        return (neg, primals_1)
"""
BACKWARD = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_2: "Sym(s0)", primals_1: "f32[4, 8][8, 1]cpu", tangents_1: "f32[32][1]cpu"):
        sin: "f32[4, 8][8, 1]cpu" = torch.ops.aten.sin.default(primals_1);  primals_1 = None
        exp: "f32[4, 8][8, 1]cpu" = torch.ops.aten.exp.default(sin)
        view: "f32[32][1]cpu" = torch.ops.aten.view.default(exp, [32]);  exp = None
        mul: "f32[32][1]cpu" = torch.ops.aten.mul.Tensor(tangents_1, view);  view = None
        other: "f32[4, 8][8, 1]cpu" = torch.ops.aten.sin.default(mul);  mul = None
        SPLIT
        return (None, other)
"""
SPLIT = """\
        split = torch.ops.aten.split.Tensor(sin, 4, 1);  sin = None
        getitem: "f32[4, 4][8, 1]cpu" = split[0];  split = None
        cos: "bf16[4, s0][s0, 1]cpu" = torch.ops.prims.convert_element_type.default(sin, torch.bfloat16)
        add: "f32[4, 4][8, 1]cpu" = torch.ops.aten.add.Tensor(getitem, cos);  getitem = cos = None
"""


def test_nodes_of_both_graphs_are_computed_again() -> None:
    """A view's base would be saved in its place; what is only on the way to it would not; `other` is not the
    forward's, though it has its name."""
    nodes = fx.rematerialised(FORWARD, BACKWARD.replace("        SPLIT\n", ""))
    assert [(n.name, n.op, n.shape, n.bytes, n.spared_bytes) for n in nodes] == [
        ("sin", "aten.sin", ("4", "8"), 128, 0),
        ("exp", "aten.exp", ("4", "8"), 128, 128),
        ("view", "aten.view", ("32",), 128, 0),
    ]


def test_parts_of_a_view_are_views_and_symbols_have_no_size() -> None:
    nodes = fx.rematerialised(FORWARD, BACKWARD.replace("        SPLIT\n", SPLIT))
    assert {n.name: n.spared_bytes for n in nodes} == {
        "sin": 128, "exp": 128, "view": 0, "getitem": 0, "cos": None
    }  # fmt: skip
    assert {n.name: n.op for n in nodes}["getitem"] == "aten.split"
    assert fx.total_bytes([n.spared_bytes for n in nodes]) is None


def test_what_min_cut_was_given_beside_the_defaults() -> None:
    given = (
        b'{"activation_memory_budget": 0.5, "recompute_views": false, "max_dist_from_bw": 1000, "cse": true}'
    )
    assert fx.partitioner_settings.decode(given).changed() == {"activation_memory_budget": 0.5}


def test_donated_buffers_are_counted_among_the_backwards_inputs() -> None:
    saved = fx.saved_tensors("", BACKWARD)
    assert [t.name for t in saved] == ["primals_1"]
    for listed, donated in (("[1]", True), ("[0,\n   2]", False), ("[]", False), ("None", None)):
        marked = fx.with_donated(saved, BACKWARD, f"Meta(a=1,\n  bw_donated_idxs={listed},\n  b=2)")
        assert [t.donated for t in marked] == [donated]


def attention(*mask: str, op: str = "cudnn_attention") -> str:
    """A graph with a call of attention whose mask, of such a type, is its input."""
    inputs = "".join(f', primals_4: "{one}"' for one in mask)
    last = "primals_4" if mask else "None"
    return (
        f'def forward(self, q: "bf16[4, 12, 4096, 64]"{inputs}):\n'
        f"     _scaled = torch.ops.aten._scaled_dot_product_{op}.default(q, q, q, {last}, True)\n"
    )


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        ("bf16[4, 1, 4096, 2048][8388608, 8388608, 2048, 1]cuda:0", 4 * 4096 * 2048),
        ("bf16[4, 12, 4096, 2048][0, 0, 2048, 1]cuda:0", 4096 * 2048),  # one for all
        ("bf16[4, 1, 4096, 2048][2048, 2048, 0, 1]cuda:0", 0),  # of keys alone, expanded
        ("bf16[4, 1, 1, 2048][2048, 2048, 2048, 1]cuda:0", 0),
        ("bf16[1, 12, 4096, 2048][1, 8388608, 2048, 1]cuda:0", 0),  # a bias of each head
        ("bf16[4, 1, s0, s0][s0**2, s0**2, s0, 1]cuda:0", 0),  # nobody knows
    ],
)
def test_masks_of_attention_that_say_which_pairs_are_let_through(mask: str, pairs: int) -> None:
    assert [found for _, found in fx.masked_pairs(attention(mask))] == [pairs]


def test_attention_without_a_mask() -> None:
    assert [found for _, found in fx.masked_pairs(attention())] == [0]
    assert not list(fx.masked_pairs(attention(op="flash_attention")))
