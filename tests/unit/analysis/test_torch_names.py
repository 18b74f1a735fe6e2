"""Names as recordings have them: CUDA's and HIP's calls, PyTorch's of 2021 and of today, other makers' of
neither."""

from __future__ import annotations

import re

import pytest

from kinetoscope.analysis.events import torch_names

LAUNCHES = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchKernel_ptsz",
    "cudaLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "hipLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipExtLaunchMultiKernelMultiDevice",
]
GRAPH_LAUNCHES = ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"]
COPIES = ["cudaMemcpyAsync", "cudaMemsetAsync", "cuMemsetD32Async", "hipMemcpyWithStream", "hipMemsetAsync"]
WAITS = [
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaStreamSynchronize_ptsz",
    "cudaEventSynchronize",
    "cuCtxSynchronize",
    "cuMemcpyDtoH_v2",
    "cudaMemcpy",
    "hipDeviceSynchronize",
    "hipStreamSynchronize_spt",
    "hipMemcpyWithStream",
    "hipMemcpyDtoH",
]
ALLOCATIONS = [
    "cudaMalloc",
    "cudaFree",
    "cudaMallocAsync",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cuMemCreate",
    "cuMemUnmap",
    "cuMemAlloc_v2",
    "hipMalloc",
    "hipExtMallocWithFlags",
    "hipHostMalloc",
    "hipMemAddressReserve",
]
OTHER_CALLS = [
    "cudaDeviceGetAttribute",
    "cudaEventQuery",
    "cudaEventRecordWithFlags",
    "cudaGraphInstantiateWithFlags",
    "cudaStreamBeginCapture",
    "cudaStreamIsCapturing",
    "cudaStreamWaitEvent",
    "cuMemcpyDtoHAsync_v2",
    "hipPointerGetAttribute",
    "INVALID",
    "launch",  # of mtia_runtime
    "urEnqueueKernelLaunch",  # of xpu_runtime
]
CALLS = {*LAUNCHES, *GRAPH_LAUNCHES, *COPIES, *WAITS, *ALLOCATIONS, *OTHER_CALLS}


def fitting(pattern: str, names: set[str]) -> set[str]:
    return {name for name in names if re.search(pattern, name)}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (torch_names.KERNEL_LAUNCH, LAUNCHES),
        (torch_names.GRAPH_LAUNCH, GRAPH_LAUNCHES),
        (torch_names.COPY, [name for name in CALLS if "Memcpy" in name or "Memset" in name]),
        (torch_names.SYNCHRONIZATION, WAITS),
        (torch_names.ALLOCATION, ALLOCATIONS),
        (torch_names.CAPTURE_BEGIN, ["cudaStreamBeginCapture"]),
    ],
)
def test_patterns_match_the_calls_of_the_runtimes(pattern: str, expected: list[str]) -> None:
    assert fitting(pattern, CALLS) == set(expected)


ANNOTATIONS = {
    "ProfilerStep#3",
    "ProfilerStep*",
    "## forward ##",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#AdamW.zero_grad",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "gloo:all_reduce",
    "nccl:barrier",
    "nccl:all_reduce",
    "c10d::barrier",
    "autograd::engine::evaluate_function: CompiledFunctionBackward",
    "CompiledFunctionBackward",
    "CompiledFunction",
    "Torch-Compiled Region: 0/0",
    "Torch-Compiled Region: forward !1/0/2",
    "Torch-Compiled Region: forward_12",
    "## Call CompiledFxGraph fabc ##",
    "backend_compile",
    "compile_fx_inner (dynamo_timed)",
    "CUDAGraphNode.record (dynamo_timed)",
    "CachingAutotuner.benchmark_all_configs (dynamo_timed)",
    "profiler::_record_function_enter_new",
    "aten::is_leaf",
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (torch_names.STEP, ["ProfilerStep#3", "ProfilerStep*"]),
        (torch_names.OPTIMIZER, ["Optimizer.step#SGD.step", "Optimizer.zero_grad#AdamW.zero_grad"]),
        (torch_names.DATA_LOADER, ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"]),
        (torch_names.BARRIER, ["gloo:all_reduce", "nccl:barrier", "c10d::barrier"]),
        (torch_names.REGION, [name for name in ANNOTATIONS if name.startswith("Torch-Compiled")]),
        (torch_names.COMPILED_BACKWARD, [name for name in ANNOTATIONS if name.endswith("FunctionBackward")]),
        (torch_names.COMPILER_PHASE, [name for name in ANNOTATIONS if name.endswith("(dynamo_timed)")]),
        (torch_names.COMPILATION, [name for name in ANNOTATIONS if "timed" in name or "backend" in name]),
        (torch_names.BOOKKEEPING, ["profiler::_record_function_enter_new", "aten::is_leaf"]),
        (
            torch_names.NOT_AN_ANNOTATION,
            ["ProfilerStep#3", "ProfilerStep*", "## Call CompiledFxGraph fabc ##"],
        ),
    ],
)
def test_patterns_match_the_annotations_that_torch_writes(pattern: str, expected: list[str]) -> None:
    assert fitting(pattern, ANNOTATIONS) == set(expected)


@pytest.mark.parametrize(
    ("name", "compile_id"),
    [
        ("Torch-Compiled Region: 0/0", "0/0"),
        ("Torch-Compiled Region: forward !1/0/2", "!1/0/2"),
        ("Torch-Compiled Region: forward_12", None),
    ],
)
def test_a_regions_compile_id(name: str, compile_id: str | None) -> None:
    match = re.search(torch_names.REGION, name)
    assert match is not None
    assert match[1] == compile_id


@pytest.mark.parametrize(
    "frame",
    [
        "train.py(12): step",
        "/home/me/train.py(12): step",
        "/sgl-workspace/sglang/python/sglang/srt/models/qwen.py(3): forward",
        "gc-pause/before.py(9): <lambda>",
        "models/torchlike.py(1): f",
    ],
)
def test_frames_of_the_user(frame: str) -> None:
    assert not re.search(torch_names.LIBRARY_FRAME, frame)


@pytest.mark.parametrize(
    "frame",
    [
        "torch/nn/modules/module.py(1775): _wrapped_call_impl",
        "/venv/lib/python3.11/site-packages/lightning/loop.py(3): run",
        "/usr/lib/python3.12/contextlib.py(12): inner",
        "/opt/python/lib/python3.11/asyncio/events.py(80): _run",
        "transformers/models/llama/modeling_llama.py(400): forward",
        "numpy/lib/_twodim_base_impl.py(454): tril",
        "PIL/Image.py(3): convert",
        "/tmp/torchinductor_me/cp/ccp33gsdoh6id7lluk3qyhozzgrcfnwcmc.py(249): call",
        "dataclasses.py(1239): replace",
        "logging/__init__.py(1477): debug",
        "nn.Module: Linear_0",
        "<built-in method item of Tensor object at 0x7f>",
        "<frozen importlib._bootstrap>(488): f",
    ],
)
def test_frames_of_libraries(frame: str) -> None:
    assert re.search(torch_names.LIBRARY_FRAME, frame)


@pytest.mark.parametrize(
    ("overhead", "of_the_driver"),
    [
        ("Lazy Function Loading", True),
        ("Runtime Triggered Module Loading", True),
        ("Activity Buffer Request", False),
        ("Buffer Flush", False),
    ],
)
def test_overhead_that_is_not_the_profilers(overhead: str, of_the_driver: bool) -> None:
    assert bool(re.search(torch_names.CODE_LOADING, overhead)) == of_the_driver
