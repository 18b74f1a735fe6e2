"""Torch's prose and listings, taken apart: breaks, recompile reasons, guards, bytecode, fusion, graphs."""

from __future__ import annotations

import dis
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.compilation import aten, breaks, bytecode, fusion, fx, guards, recompiles
from kinetoscope.compilation.breaks import Occurrence, Place
from kinetoscope.compilation.log.records import Arguments, RegionEvent
from kinetoscope.compilation.phases import regions, seconds, spans

PRINT_BREAK = """\
Graph break in user code at /home/user/a.py:14
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print` with argument types ['str']
  Hint: Avoid calling builtin `print`.
  Hint: Please report an issue to PyTorch.

  Developer debug context: builtin print False

 For more details about this graph break, please visit: https://example.org/gb0059.html

User code traceback:
  File "/home/user/a.py", line 27, in <module>
    m(x)
  File "/home/user/a.py", line 14, in forward
    if x.shape[0]>8: print('Batch too big!')

Traceback (most recent call last):
  File "/torch/_dynamo/symbolic_convert.py", line 14, in wrapper
    return inner_fn(self, inst)
"""


def test_a_graph_break_is_parsed_into_place_reason_and_hints() -> None:
    place, explained, skipped = breaks.parse_artifact(PRINT_BREAK)
    assert (place.file, place.line, place.function) == ("/home/user/a.py", 14, "forward")
    assert place.code == "if x.shape[0]>8: print('Batch too big!')"
    assert explained.reason == "Failed to trace builtin operator"
    assert explained.explanation.endswith("argument types ['str']")
    assert explained.hints == ("Avoid calling builtin `print`.", "Please report an issue to PyTorch.")
    assert explained.context == "builtin print False"
    assert explained.url == "https://example.org/gb0059.html"
    assert not skipped


def occurrence(reason: str, source: str, frame: int, line: int | None = 14) -> Occurrence:
    return Occurrence(
        frame=frame,
        compile_id=f"{frame}/0",
        place=Place(file="a.py", line=line, function="f", code=None),
        explained=breaks.explain(f"{reason}\n  Explanation: why"),
        skipped_frame=False,
        cost_s=1.0,
        source=source,
    )


def test_three_sources_are_one_row() -> None:
    rows = breaks.reconcile(
        [
            occurrence("print", "artifact", 0),
            occurrence("print", "metrics", 0, line=1),  # the frame's line: metrics know no better
            occurrence("print", "artifact", 1),
            occurrence("item", "metrics", 2, line=9),
        ],
        {"print\n  Explanation: why": 2, "generator\n  Explanation: never logged": 3},
    )
    assert {(r.reason, r.line, r.count, r.sources) for r in rows} == {
        ("print", 14, 2, ("artifact", "metrics")),
        ("item", 9, 1, ("metrics",)),
        ("generator", None, 3, ("counters",)),
    }
    assert next(r.cost_s for r in rows if r.reason == "print") == 2.0


@pytest.mark.parametrize(
    ("text", "kind", "subject", "dimension", "expected", "actual", "says"),
    [
        (
            "tensor 'x' size mismatch at index 1. expected 64, actual 128",
            *("size", "x", 1, "64", "128", "mark_dynamic(x, 1)"),
        ),
        (
            "tensor 'L['q']' stride mismatch at index 0. expected 8, actual 4",
            *("stride", "q", 0, "8", "4", "contiguous"),
        ),
        (
            "tensor 'x' dtype mismatch. expected Float, actual Half",
            *("dtype", "x", None, "Float", "Half", "the same at every call"),
        ),
        (
            "expected type of 'c' to be a tensor type, ' but found <class 'float'>",
            *("type", "c", None, "tensor type", "<class 'float'>", "as_tensor(c)"),
        ),
        (
            "m.i == 'ab'   # return x*len(s.i)  # own/lim.py:4 in forward",
            *("constant", "m.i", None, "'ab'", None, "burnt into it"),
        ),
        ("L['n'] == 3", "constant", "n", None, "3", None, "dynamic=True"),
        ("L['c'] == 2.5", "constant", "c", None, "2.5", None, "torch.tensor(c)"),
        ("___stack0 == 21.8", "constant", "___stack0", None, "21.8", None, "capture_scalar_outputs"),
        (
            "2 <= a.size()[2] <= 32  # z=(a@v)  # own/demo.py:14 in f (x.py:1 in g)",
            *("range", "a", 2, "2 <= a.size()[2] <= 32", None, "min=…"),
        ),
        (
            "BACKEND_MATCH failure: torch.compile detected different backend callables.",
            *("backend", None, None, None, None, "call torch.compile once"),
        ),
        ("___check_obj_id(L['f'], 140)", "identity", "f", None, None, None, "create it once"),
        ("len(L['xs']) == 3", "length", "len(xs)", None, "3", None, "fixed number of items"),
        ("GLOBAL_STATE changed: grad_mode ", "global-state", None, None, None, None, "grad mode"),
        ("something nobody has seen", "other", None, None, None, None, "same at every call"),
    ],
)
def test_reasons_and_their_remedies(
    text: str, kind: str, subject: str, dimension: int, expected: str, actual: str, says: str
) -> None:
    reason = recompiles.parse(f"0/1: {text}")
    assert reason.of == "0/1"
    assert (reason.kind, reason.subject, reason.dimension) == (kind, subject, dimension)
    assert (reason.expected, reason.actual) == (expected, actual)
    assert says in recompiles.advice([reason], limit_hit=False)
    assert recompiles.advice([reason], limit_hit=True).startswith("The recompile limit")


@given(st.text(max_size=200))
def test_no_prose_breaks_the_parsers(text: str) -> None:
    breaks.parse_artifact(text)
    breaks.explain(text)
    recompiles.advice([recompiles.parse(text)], limit_hit=False)
    guards.parse(text)
    bytecode.parse(text)
    fusion.parse(text.split("\n"))
    list(fx.nodes(text))


GUARDS = """\

TREE_GUARD_MANAGER:
+- RootGuardManager
| +- DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == None   # _dynamo/output_graph.py:951 in init_ambient_guards
| +- GuardManager: source=L['x'], accessed_by=FrameLocalsGuardAccessor(key='x', framelocals_idx=1), type=<class 'torch.Tensor'>, tag_safe=(True, False)
| | +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CUDA, AutogradCUDA), torch.float32, device=0, requires_grad=False, size=[None, 64], stride=[64, 1])  # return F.linear(x)  # nn/linear.py:134 in forward
| +- GuardManager: source=L['self'], accessed_by=FrameLocalsGuardAccessor(key='self', framelocals_idx=0), type=<class '__main__.M'>, tag_safe=(True, True)
| | +- TYPE_MATCH: ___check_type_id(L['self'], 1108), type=<class '__main__.M'>  # q=self.W(x)  # a.py:8 in forward (HINT: type M)

Guard latency = 53.49 us
"""


def test_guards_as_a_tree_in_words() -> None:
    tree = guards.parse(GUARDS)
    assert (tree.checks, tree.latency_us, guards.count_checks(GUARDS)) == (3, 53.49, 3)
    (root,) = tree.roots
    device, x, module = root.children
    assert device.words == "the default device is as it was"
    assert x.words == "x, a torch.Tensor"
    (tensor,) = x.children
    assert tensor.words == (
        "x is a float32 tensor of shape [any, 64] with strides [64, 1] on device 0, without gradient"
    )
    assert (tensor.file, tensor.line, tensor.code) == ("nn/linear.py", 134, "return F.linear(x)")
    assert module.children[0].words == "self is still a __main__.M"
    assert module.children[0].line == 8


def test_bytecode_of_this_python() -> None:
    """Whatever dis prints here, the opcodes are those of dis, in order, and the lines are the source's."""

    def forward(x: int) -> int:
        y = x * 2
        return y + 1

    listing = io.StringIO()
    dis.dis(forward, file=listing)
    parsed = bytecode.parse(listing.getvalue())
    assert [i.opcode for i in parsed] == [i.opname for i in dis.get_instructions(forward)]
    starts = {line for _, line in dis.findlinestarts(forward.__code__)}
    assert {i.line for i in parsed if i.line is not None} == starts - {None}
    assert all(i.meaning for i in parsed)


PYTHON_3_11 = """\
 13           0 RESUME                   0
              2 LOAD_GLOBAL             35 (NULL + __compiled_fn_9_98)
        >>   14 POP_JUMP_FORWARD_IF_FALSE    22 (to 104)
             16 RETURN_VALUE
"""
PYTHON_3_13 = """\
 13           RESUME                   0
      L1:     LOAD_FAST                1 (x)
              RETURN_VALUE
"""


def test_bytecode_of_other_pythons() -> None:
    old = bytecode.parse(PYTHON_3_11)
    assert [(i.line, i.offset, i.opcode) for i in old] == [
        (13, 0, "RESUME"),
        (None, 2, "LOAD_GLOBAL"),
        (None, 14, "POP_JUMP_FORWARD_IF_FALSE"),
        (None, 16, "RETURN_VALUE"),
    ]
    assert old[1].meaning == "the compiled graph"
    assert (old[2].argument, old[2].operand) == ("22", "to 104")
    new = bytecode.parse(PYTHON_3_13)
    assert [(i.line, i.offset, i.operand) for i in new] == [
        (13, None, None),
        (None, None, "x"),
        (None, None, None),
    ]


FUSION = """\
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:4995] [0/0_1] [__fusion] ===== attempting fusion (1/10): 15 nodes =====
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:2059] [0/0_1] [__fusion] cannot fuse op0 with op2: no shared data
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:2059] [0/0_1] [__fusion] cannot fuse op1 with op2: no shared data
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:5748] [0/0_1] [__fusion] fusing op9 with op10
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:5002] [0/0_1] [__fusion] completed fusion round (1/10): fused 15 nodes into 12 nodes
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:4995] [0/0_1] [__fusion] ===== attempting fusion (2/10): 12 nodes =====
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:2059] [0/0_1] [__fusion] cannot fuse op0 with op2: no shared data
V1121 01:48:44.7 8611 torch/_inductor/scheduler.py:5002] [0/0_1] [__fusion] completed fusion round (2/10): fused 12 nodes into 12 nodes
V1121 01:48:45.7 8611 torch/_inductor/scheduler.py:4995] [1/0] [__fusion] ===== attempting fusion (1/10): 3 nodes =====
V1121 01:48:45.8 8611 torch/_inductor/scheduler.py:6545] [1/0] [__cudagraphs] Created 3 graph partitions: 1 cudagraphable, 2 non-cudagraphable
V1121 01:48:45.8 8611 torch/_inductor/scheduler.py:6580] [1/0] [__cudagraphs]     op0: reason=cpu ops, ir=ComputedBuffer, fx=aten.sum.default(x)
V1121 01:48:46.7 8611 torch/_inductor/cudagraph_trees.py:1] [1/0] [__cudagraphs] skipping cudagraphs due to mutated inputs (1 instances)
"""


def test_fusion_rounds_and_why_not() -> None:
    parsed = fusion.parse(FUSION.splitlines())
    (first_id, first), (second_id, second) = parsed.graphs
    assert (first_id, second_id) == ("0/0", "1/0")
    assert [(r.before, r.after) for r in first.rounds] == [(15, 12), (12, 12)]
    assert first.fused == ("op9 with op10",)
    assert [(w.why, w.count) for w in first.not_fused] == [("no shared data", 2)]
    assert second.rounds == ()
    assert first.partitions is None
    assert second.partitions is not None
    assert (second.partitions.cudagraphable, second.partitions.others) == (1, 2)
    assert second.partitions.reasons == ("cpu ops: aten.sum.default(x)",)
    assert parsed.cudagraph_skips == (("1/0", "mutated inputs (1 instances)"),)


GRAPH = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4, 8][8, 1]cuda:0", primals_2: "Sym(s0)"):
        # File: /a.py:9 in forward, code: out=q@k
        mm: "bf16[4, s0][8, 1]cuda:0" = torch.ops.aten.mm.default(primals_1, primals_1)
        mul: "f32[4, 8][8, 1]cuda:0" = torch.ops.aten.mul.Tensor(mm, 2);  mm = None
        # No stacktrace found for following nodes
        add: "b8[4, 8][8, 1]cuda:0" = torch.ops.aten.add.Tensor(mul, 2)
        return (
            add,  # PlainAOTOutput(idx=0)
            mm,  # SavedForBackwardsAOTOutput(idx=0)
            mul,  # SavedForBackwardsAOTOutput(idx=1)
        )
"""


def test_graph_nodes_and_saved_tensors() -> None:
    nodes = list(fx.nodes(GRAPH))
    assert [(n.name, n.target, n.source and n.source.line) for n in nodes] == [
        ("mm", "torch.ops.aten.mm.default", 9),
        ("mul", "torch.ops.aten.mul.Tensor", 9),
        ("add", "torch.ops.aten.add.Tensor", None),
    ]
    assert fx.op_counts(GRAPH) == {"aten.mm": 1, "aten.mul": 1, "aten.add": 1}
    saved = fx.saved_tensors(GRAPH, None)
    assert [(s.name, s.shape, s.bytes) for s in saved] == [
        ("mm", ("4", "s0"), None),
        ("mul", ("4", "8"), 128),
    ]


def test_without_marks_the_backward_inputs_were_saved() -> None:
    backward = (
        'def forward(self, view: "f32[4, 8][8, 1]cuda:0", tangents_1: "f32[4][1]cuda:0"):\n    return ()'
    )
    assert [(s.name, s.bytes) for s in fx.saved_tensors("", backward)] == [("view", 128)]


def test_a_recordings_fusion_text_names_no_compilation() -> None:
    """The same lines as a recording's scheduler.log has them."""
    lines = [
        "DEBUG 2026-11-21 03:51:01,059 torch._inductor.scheduler.__fusion " + line.split("[__fusion] ")[1]
        for line in FUSION.splitlines()
        if "[__fusion]" in line
    ]
    parsed = fusion.parse(lines)
    assert [compile_id for compile_id, _ in parsed.graphs] == ["", ""]
    assert [g.rounds for _, g in parsed.graphs] == [
        g.rounds for _, g in fusion.parse(FUSION.splitlines()).graphs
    ]


def test_the_glossary_knows_overloads() -> None:
    assert aten.meaning("aten.mul.Tensor") == aten.meaning("aten.mul") == "Multiplies input by other"
    assert aten.in_short("aten.mul.Tensor") == "elementwise product"
    # Torch has no docstring of it.
    assert aten.meaning("aten.native_layer_norm") == "layer normalisation"
    assert aten.meaning("aten.nothing_like_it") is None


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("cpp_fused_add_gelu_view_0", ("aten.add", "aten.gelu", "aten.view")),
        ("cpp_fused_gelu_gelu_backward_view_3", ("aten.gelu", "aten.gelu_backward", "aten.view")),
        ("triton_poi_fused__to_copy_12", ("aten._to_copy",)),
        ("triton_red_fused__softmax_backward_data_div_0", ("aten._softmax_backward_data", "aten.div")),
        ("triton_poi_fused_add_mystery_0", ()),
        ("triton_tem_fused_mystery_0", ()),
        ("my_kernel", ()),
    ],
)
def test_ops_in_a_kernels_name(name: str, ops: tuple[str, ...]) -> None:
    assert aten.ops_in_name(name, set()) == ops


def test_phases_are_exclusive_and_complete() -> None:
    def event(name: str, ts: float, ph: str) -> RegionEvent:
        return RegionEvent(name, ts * 1e6, ph, Arguments())

    found = regions(
        [
            event("dynamo", 0, "B"),
            event("backend_compile", 2, "B"),
            event("compile_fx.<locals>.fw_compiler_base", 3, "B"),
            event("GraphLowering.codegen", 4, "B"),
            event("async_compile.wait", 6, "B"),
            event("async_compile.wait", 7, "E"),
            event("GraphLowering.codegen", 8, "E"),
            event("compile_fx.<locals>.fw_compiler_base", 9, "E"),
            event("compile_fx.<locals>.bw_compiler", 9, "B"),
            event("async_compile.wait", 10, "B"),
            event("async_compile.wait", 11, "E"),
            event("compile_fx.<locals>.bw_compiler", 12, "E"),
            event("backend_compile", 12, "E"),
            event("dynamo", 14, "E"),
            event("never opened", 15, "E"),
        ]
    )
    assert [(phase, start / 1e6, end / 1e6) for phase, start, end in spans(found)] == [
        ("dynamo", 0, 2), ("aot", 2, 3), ("inductor", 3, 4), ("codegen", 4, 6), ("triton", 6, 7),
        ("codegen", 7, 8), ("inductor", 8, 9), ("backward", 9, 12), ("dynamo", 12, 14),
    ]  # fmt: skip
    assert seconds(found) == {
        "dynamo": 4,
        "aot": 1,
        "inductor": 2,
        "codegen": 3,
        "triton": 1,
        "autotune": 0,
        "cudagraphs": 0,
        "backward": 3,
    }


def test_the_glossary_says_what_torchs_docstrings_say() -> None:
    torch = pytest.importorskip("torch")
    for op in ("mul", "mm", "exp", "topk", "cat", "where", "cumsum", "permute", "var_mean"):
        words = aten.meaning(f"aten.{op}")
        assert words
        prose = " ".join(re.sub(r":\w+:`~?([^`]*)`|`|\*", r"\1", getattr(torch, op).__doc__).split())
        assert words in prose
    assert (aten.meaning("aten.relu") or "?") in torch.nn.functional.relu.__doc__
