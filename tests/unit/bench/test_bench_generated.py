"""Reading generated modules: the kernels, what they are called with, what their sources say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kinetoscope.bench.kernels import follow, generated
from kinetoscope.bench.kernels.generated import KernelCall, ScalarArgument, TensorArgument
from kinetoscope.compilation.generated.module import KernelFacts, facts
from kinetoscope.errors import InputError

torch = pytest.importorskip("torch")


def own_harness(source: str) -> list[tuple[object, ...]] | None:
    """An independent account of a kernel's arguments: the get_args() that Inductor wrote into its source."""
    found: list[tuple[object, ...]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "get_args":
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call):
                    shape, stride = (ast.literal_eval(a) for a in line.value.args)
                    dtype = next(k.value.attr for k in line.value.keywords if k.arg == "dtype")
                    found.append((shape, stride, dtype))
                elif isinstance(line, ast.Assign):
                    found.append((ast.literal_eval(line.value),))
                elif isinstance(line, ast.Return):
                    found += [(e.value,) for e in line.value.elts if isinstance(e, ast.Constant)]
            return found
    return None


def described(call: KernelCall) -> list[tuple[object, ...]]:
    return [
        (a.shape, a.stride, a.dtype) if isinstance(a, TensorArgument) else (a.value,) for a in call.arguments
    ]


@pytest.mark.parametrize(("name", "kernels", "launches"), [("forward", 245, 630), ("backward", 276, 532)])
def test_every_kernel_of_mixnet_is_found_with_the_arguments_its_own_harness_has(
    shared_data: Path, name: str, kernels: int, launches: int
) -> None:
    [module] = generated.find(shared_data / "inductor" / f"mixnet_l_{name}.py.gz")
    assert module.aot_id == f"0_{name}"
    assert (
        len(module.kernels)
        == kernels
        == len(set(re.findall(r"= async_compile.triton\('(\w+)'", module.source)))
    )
    calls = follow.calls(module)
    wrapper = module.source.partition("async_compile.wait(globals())")[2]
    assert len(calls) == launches == len(re.findall(r"^ +triton_\w+\.run\(", wrapper, re.MULTILINE))
    seen: dict[str, list[list[tuple[object, ...]]]] = {}
    for call in calls:
        seen.setdefault(call.kernel, []).append(described(call))
    for kernel, accounts in seen.items():
        assert own_harness(module.kernels[kernel].source) in accounts, kernel


def test_categories_and_bytes_agree_with_what_inductor_wrote(shared_data: Path) -> None:
    [module] = generated.find(shared_data / "inductor" / "mixnet_l_backward.py.gz")
    prefixes = {"pointwise": "triton_poi", "reduction": "triton_red", "persistent reduction": "triton_per"}
    first = {call.kernel: call for call in reversed(follow.calls(module))}
    for name, kernel in module.kernels.items():
        known = facts(kernel.name, kernel.kind, kernel.source)
        assert name.startswith(prefixes[known.category])
        assert known.inductor_bytes is not None
        ours = generated.moved_bytes(known.parameters, first[name].arguments)
        if "cat" not in name and "slice" not in name and "split" not in name:
            # Inductor adds what it reads again; without slices and concatenations the two agree within that.
            assert 0.3 < ours / known.inductor_bytes < 3.1, (name, ours, known.inductor_bytes)


def compiled_on_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()

    def softmax_and_slice(x, index):
        h = torch.softmax(x, -1)
        return h[index], (h * 2).sum(0), torch.cat([x, h], 1)

    torch.compile(softmax_and_slice, dynamic=False)(torch.randn(12, 40), torch.tensor([3, 1]))
    return folder


@pytest.mark.slow
def test_modules_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [module] = generated.find(compiled_on_cpu(tmp_path, monkeypatch))
    [kernel] = module.kernels.values()
    assert kernel.kind == "cpp"
    [call] = follow.calls(module)
    shapes = {(a.shape, a.dtype) for a in call.arguments if isinstance(a, TensorArgument)}
    assert {((12, 40), "float32"), ((2,), "int64"), ((40,), "float32")} <= shapes
    # The two halves of the concatenation's result share memory, the second 40 elements further on.
    halves = [a for a in call.arguments if isinstance(a, TensorArgument) and a.stride == (80, 1)]
    assert {a.offset for a in halves} == {0, 40}
    assert len({a.storage for a in halves}) == 1
    known = facts(kernel.name, kernel.kind, kernel.source)
    assert known.category == "reduction"
    assert len(known.parameters) == len(call.arguments)


def test_bytes_count_each_distinct_element_once_and_updates_twice() -> None:
    dense = TensorArgument((4, 8), (8, 1), "float32", "cuda", 0, 0)
    broadcast = TensorArgument((4, 8), (0, 1), "bfloat16", "cuda", 1, 0)
    names = ("in_ptr0", "in_out_ptr0", "in_ptr1", "xnumel")
    assert generated.moved_bytes(names, (dense, dense, broadcast, ScalarArgument(32))) == 128 + 256 + 16
    assert broadcast.reach == 8
    assert TensorArgument((3, 2), (10, 1), "float32", "cuda", 0, 5).reach == 5 + 22
    assert TensorArgument((0, 2), (2, 1), "float32", "cuda", 0, 0).reach == 0


TRITON = """
@triton_heuristics.{heuristic}(
    size_hints={{'x': 16}}, filename=__file__,
    triton_meta={{
        'signature': {{'in_out_ptr0': '*fp32', 'xnumel': 'i32'}}, 'device': DeviceProperties(type='cuda')
    }},
    inductor_meta={{'mutated_arg_names': ['in_out_ptr0'], 'kernel_num_gb': 2e-06}},
)
@triton.jit
def k(in_out_ptr0, xnumel): {body}
"""


@pytest.mark.parametrize(
    ("heuristic", "body", "category"),
    [
        ("pointwise", "pass", "pointwise"),
        ("persistent_reduction", "pass", "persistent reduction"),
        ("reduction", "tl.associative_scan(x, 0, add)", "scan"),
        ("persistent_reduction", "triton_helpers.sort_with_index(x)", "sort"),
        ("template", "pass", "template"),
        ("user_autotune", "pass", "user Triton"),
        ("foreach", "pass", "foreach"),
    ],
)
def test_categories_come_from_the_heuristic(heuristic: str, body: str, category: str) -> None:
    text = TRITON.format(heuristic=heuristic, body=body)
    assert facts("k", "triton", text) == KernelFacts(
        category, ("in_out_ptr0", "xnumel"), ("in_out_ptr0",), 2000, None
    )


def test_a_folder_without_modules_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('hello')")
    with pytest.raises(InputError, match="no module that Inductor generated"):
        generated.find(tmp_path)


MODULE_OF_2_9 = """# AOT ID: ['3_inference']
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
async_compile = AsyncCompile()
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import nothing_here
''', device_str='cuda')
async_compile.wait(globals())
del async_compile

def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    s0 = arg0_1
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((s0, 5), (5, 1), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_add_0.run(arg1_1, buf0, s0*5, stream=stream0)
    return (buf0, )

def benchmark_compiled_module(times=10, repeat=10):
    from torch._dynamo.testing import rand_strided
    from torch._inductor.utils import print_performance
    arg0_1 = 7
    arg1_1 = rand_strided((7, 5), (5, 1), device='cuda:0', dtype=torch.float32)
    fn = lambda: call([arg0_1, arg1_1])
    return print_performance(fn, times=times, repeat=repeat)
"""


def test_the_harness_of_older_versions_and_a_dynamic_size(tmp_path: Path) -> None:
    (tmp_path / "cabc.py").write_text(MODULE_OF_2_9)
    [module] = generated.find(tmp_path)
    assert (module.hash, module.aot_id) == ("cabc", "3_inference")
    [call] = follow.calls(module)
    assert described(call) == [((7, 5), (5, 1), "float32"), ((7, 5), (5, 1), "float32"), (35,)]


def test_a_wrapper_that_cannot_be_followed_says_why(tmp_path: Path) -> None:
    broken = MODULE_OF_2_9.replace("s0 = arg0_1", "s0 = arg1_1.sum().item()")
    (tmp_path / "cabc.py").write_text(broken)
    [module] = generated.find(tmp_path)
    with pytest.raises(generated.ReplayError, match="cannot be followed"):
        follow.calls(module)
    (tmp_path / "cabc.py").write_text(MODULE_OF_2_9.partition("def benchmark")[0])
    [module] = generated.find(tmp_path)
    with pytest.raises(InputError, match="no benchmark harness"):
        follow.calls(module)
