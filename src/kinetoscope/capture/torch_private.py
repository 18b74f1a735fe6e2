"""Every private PyTorch name that capture depends on, in one place.

Checked on PyTorch 2.9.1, 2.11.0, 2.13.0 and 2.15.0. Each is looked up when needed; where one is missing the
feature that needs it is off, and the caller says so in the recording's notes.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from types import CodeType
from typing import Any, TypedDict

# Loggers whose messages are no part of the structured log; with the name TORCH_LOGS knows them by.
TAPPED_LOGGERS = {
    "torch._inductor.scheduler.__fusion": "fusion",
    "torch._inductor.cudagraph_trees.__cudagraphs": "cudagraphs",
    "torch._inductor.cudagraph_utils.__cudagraphs": "cudagraphs",
    "torch._inductor.scheduler.__cudagraphs": "cudagraphs",
}
STRUCTURED_LOGGER = "torch.__trace"

EVAL_FRAME = "torch._dynamo.eval_frame"
CONVERT_FRAME = "torch._dynamo.convert_frame"
COMPILE_CALLBACKS = "torch._dynamo.callback"
OUTPUT_GRAPH = "torch._dynamo.output_graph"
# Reads the variables that set Inductor up when it is imported, and no later.
INDUCTOR_CONFIG = "torch._inductor.config"
TRITON_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
TRITON_JIT = "triton.runtime.jit"
OUT_OF_MEMORY = "_cuda_attach_out_of_memory_observer"  # in torch._C, for observers of allocations that fail
# In libtorch_cpu.so, checked on 2.13: what returns Kineto's one object; the session of all threads, and what
# has it hear of no operator that begins from then on; what ends it, writes its result to a path, and destroys
# that.
KINETO = "_ZN9libkineto3apiEv"
PROFILER_STATE = "_ZN5torch8profiler4impl17ProfilerStateBase3getEb"
REMOVE_CALLBACK = "_ZN5torch8profiler4impl17ProfilerStateBase14removeCallbackEv"
DISABLE_PROFILER = "_ZN5torch8autograd8profiler15disableProfilerEv"
SAVE_RESULT = (
    "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)
DESTROY_RESULT = "_ZN5torch8autograd8profiler14ProfilerResultD1Ev"
# In torch._C: what torch.cuda.empty_cache and torch.accelerator's call.
EMPTY_CACHE = ("_cuda_emptyCache", "_accelerator_emptyCache")
# In torch._C, with a device's number: what their reset_peak_memory_stats call.
RESET_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
COUNTED = ("requested", "allocated", "reserved")  # what the allocator counts bytes of

# What torch is doing while one of these functions runs: files of its folder, and of triton's, with functions
# in them (None: any). Those that compile run for nothing else; ``run`` of the same files launches.
DOES: dict[str, tuple[str, frozenset[str] | None]] = {
    "torch/_dynamo/convert_frame.py": ("compiling", None),
    "torch/_inductor/async_compile.py": ("compiling", None),
    "torch/_inductor/compile_fx.py": (
        "compiling",
        frozenset({"compile_fx", "compile_fx_inner", "_compile_fx_inner", "bw_compiler", "compile_fx_aot"}),
    ),
    "torch/_inductor/runtime/triton_heuristics.py": (
        "compiling",
        frozenset({"precompile", "autotune_to_one_config", "coordinate_descent_tuning"}),
    ),
    "torch/export/_trace.py": ("compiling", None),
    "torch/jit/_trace.py": ("compiling", frozenset({"trace", "trace_module", "_trace_impl"})),
    "triton/compiler/compiler.py": ("compiling", frozenset({"compile"})),
    "triton/runtime/autotuner.py": ("compiling", frozenset({"_bench"})),
    "torch/utils/data/dataloader.py": ("loading data", None),
    "torch/serialization.py": ("saving", frozenset({"save", "_save", "_legacy_save"})),
    "torch/distributed/checkpoint/state_dict_saver.py": ("saving", None),
    "torch/_tensor.py": ("backward", frozenset({"backward"})),
    "torch/autograd/__init__.py": ("backward", frozenset({"backward", "grad"})),
}
# The folder of torch's optimizers, whose ``step`` is the one in each of its files.
OPTIMIZERS = "torch/optim/"


def structured_formatter() -> logging.Formatter:
    """The formatter that writes the lines and payloads of a TORCH_TRACE file."""
    from torch._logging._internal import TorchLogsFormatter

    return TorchLogsFormatter(trace=True)


def log_version() -> None:
    """Have torch write its version into the structured log, as it does at the top of a TORCH_TRACE file."""
    import torch._logging._internal as internal

    write = getattr(internal, "_log_torch_version", None)
    if write is not None:
        write()


def structured_artifact(name: str, payload: str) -> logging.LogRecord:
    """A record of the compilation that is going on, as torch's own code would log it."""
    from torch._guards import CompileContext

    trace_id: Any = CompileContext.current_trace_id()
    context = {
        "compiled_autograd_id": trace_id.compile_id.compiled_autograd_id,
        "frame_id": trace_id.compile_id.frame_id,
        "frame_compile_id": trace_id.compile_id.frame_compile_id,
        "attempt": trace_id.attempt,
    }
    header: dict[str, object] = {"artifact": {"name": name, "encoding": "json"}}
    header |= {what: value for what, value in context.items() if value is not None}
    header["has_payload"] = hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()
    values = {"name": STRUCTURED_LOGGER, "pathname": __file__, "metadata": header, "payload": payload}
    return logging.makeLogRecord({"levelno": logging.DEBUG, "levelname": "DEBUG", **values})


class BackendCall(TypedDict):
    """The backend of a frame: its name, its module, and the mode and options it is called with."""

    backend: str
    module: str
    mode: str | None
    options: dict[str, bool | str]


def backend_of(compiler: Any) -> BackendCall:
    """The backend behind what Dynamo calls with a frame's graph."""
    around = compiler
    compiler = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    if (split := getattr(getattr(compiler, "__self__", None), "backend_compile_fn", None)) is not None:
        return backend_of(split)  # DistributedDataParallel cuts the graph first
    name = getattr(compiler, "compiler_name", None) or getattr(around, "_compiler_name", None)
    function = getattr(compiler, "compiler_fn", compiler)
    given = getattr(compiler, "kwargs", {})
    options = getattr(compiler, "config", None) or given.get("options") or {}
    return {
        "backend": str(name or getattr(function, "__qualname__", None) or type(function).__qualname__),
        "module": str(getattr(function, "__module__", "")),
        "mode": given.get("mode"),
        "options": {
            str(key): value if isinstance(value, bool) else str(value) for key, value in options.items()
        },
    }


def hide_from_dynamo(*functions: Callable[..., Any], callees: bool = False) -> None:
    """Keep Dynamo from compiling these functions in the user's code; with ``callees``, all they call."""
    import torch._C._dynamo.eval_frame as evaluation

    action = evaluation._FrameAction
    strategy = evaluation._FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
    for function in functions:
        evaluation.set_code_exec_strategy(function.__code__, strategy)


def dynamo_switch() -> Callable[[Any], Any]:
    """Sets what evaluates this thread's frames, and returns what did: None is plain Python."""
    from torch._C._dynamo.eval_frame import set_eval_frame

    return set_eval_frame


def around_compilations(before: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call ``before`` when Dynamo begins to compile and ``after`` when it has; what comes back ends that."""
    from torch._dynamo.callback import callback_handler

    def started(*_: Any) -> None:
        before()

    def ended(*_: Any) -> None:
        after()

    def remove() -> None:
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them, and all others
            callback_handler.remove_start_callback(started)
            callback_handler.remove_end_callback(ended)

    callback_handler.register_start_callback(started)
    callback_handler.register_end_callback(ended)
    return remove


def module_call_codes() -> frozenset[CodeType]:
    """The code of the functions that are on the stack while any module's forward runs."""
    from torch.nn import Module

    return frozenset((Module._wrapped_call_impl.__code__, Module._call_impl.__code__))


def batch_codes() -> frozenset[CodeType]:
    """The code of the functions that are on the stack while a data loader without workers makes a batch."""
    module = sys.modules.get("torch.utils.data._utils.fetch")
    names = ("_MapDatasetFetcher", "_IterableDatasetFetcher")
    fetches = [getattr(getattr(module, name, None), "fetch", None) for name in names]
    return frozenset(fetch.__code__ for fetch in fetches if fetch is not None)


def optimizer_codes() -> frozenset[CodeType]:
    """The code of the function that is on the stack while an optimizer steps."""
    from torch.optim import Optimizer

    return frozenset((Optimizer.profile_hook_step(lambda: None).__code__,))


# Looked up on a module's class in every call of it: also through a bound `__call__` that was kept, or
# compiled, where `__call__` itself is looked up once and never again.
MODULE_CALL = "_call_impl"


@contextlib.contextmanager
def compiler_left_alone(*, stacks: bool) -> Generator[None, None, None]:
    """torch.profiler looks for Inductor's CUDA graphs, and so imports all of the compiler (2.13, for one).

    What the program has not imported has none, and the import would take seconds, and set variables of the
    environment. Where Python's ``stacks`` are recorded it is let be: an import of the program's own, in the
    middle of the recording, would make 400 MB of it.
    """
    import torch

    lazy: Any = getattr(torch, "_lazy_modules", None)
    absent = "torch._inductor" not in sys.modules and "TORCHINDUCTOR_CUDAGRAPHS" not in os.environ
    hidden = not stacks and absent and isinstance(lazy, set) and "_inductor" in lazy
    if hidden:
        lazy.discard("_inductor")
    try:
        yield
    finally:
        if hidden:
            lazy.add("_inductor")


def graph_classes() -> Iterator[type]:
    """The classes whose ``capture_begin`` and ``capture_end`` capture graphs of this torch's devices."""
    import torch

    for module, name in ((torch.cuda, "CUDAGraph"), (getattr(torch, "xpu", None), "XPUGraph")):
        graph = getattr(module, name, None)
        if isinstance(graph, type) and hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
            yield graph


def captures_now() -> bool:
    """Whether the current stream of this thread captures a graph."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def tries_algorithms() -> bool:
    """Whether cuDNN may be trying out algorithms, which it does for each new shape."""
    import torch

    return torch.cuda.is_initialized() and torch._C._get_cudnn_benchmark()


def in_backward() -> bool:
    """Whether this thread runs a part of a backward pass: a hook, or a checkpointed function once more."""
    import torch

    return torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def warnings_kept_in() -> Generator[None, None, None]:
    """Drop what this thread warns of, whatever filters the program has set.

    ``warnings.catch_warnings`` would have other threads' warnings, and has each warning that the program was
    shown once shown once more. Up to 2.11, torch's profilers keep ``warn`` under a name of their own.
    """
    ours, warn = threading.get_ident(), warnings.warn

    def dropped(*arguments: Any, **named: Any) -> None:
        if threading.get_ident() != ours:
            warn(*arguments, **named)

    named = (warnings, *map(sys.modules.get, ("torch.profiler.profiler", "torch.autograd.profiler")))
    holders = [module for module in named if getattr(module, "warn", None) is warn]
    for module in holders:
        setattr(module, "warn", dropped)  # noqa: B010
    try:
        yield
    finally:
        for module in holders:
            if getattr(module, "warn", None) is dropped:
                setattr(module, "warn", warn)  # noqa: B010


def profilers() -> Iterator[type]:
    """Torch's classes whose instances take the one profiler there is, from ``__enter__`` to ``__exit__``."""
    import torch.autograd.profiler as profilers

    yield profilers.profile
    for module, name in (
        (profilers, "emit_nvtx"),
        (profilers, "emit_itt"),
        (sys.modules.get("torch.autograd.profiler_legacy"), "profile"),
    ):
        if isinstance(found := getattr(module, name, None), type):
            yield found


@contextlib.contextmanager
def asked_in_silence() -> Generator[None, None, None]:
    """Ask tensors what they are without the program's modes and subclasses hearing of it."""
    import torch

    with torch._C.DisableTorchFunction():
        yield


def tensors_in(value: Any) -> list[Any]:
    """The tensors that an argument is, or holds: plain ones, which no class of the program's answers for."""
    import torch

    values = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
    return [one for one in values if type(one) is torch.Tensor]


def read_in_silence(tensors: Sequence[Any], every: int = 1) -> list[Any]:
    """Values of tensors, or of every so many rows, as lists, without the program's modes and subclasses
    hearing of it; none where the program wants to hear of what waits for its device, or captures a graph,
    which that would end."""
    import torch

    with asked_in_silence(), torch._C._DisableTorchDispatch():
        waits = any(one.is_cuda for one in tensors)
        if waits and (captures_now() or torch.cuda.get_sync_debug_mode()):
            return []
        return [one.tolist() if every == 1 else [row.tolist() for row in one[::every]] for one in tensors]


@contextlib.contextmanager
def said_once_no_more() -> Generator[None, None, None]:
    """Keep torch's profiler from printing, in our sessions, warnings that it prints once in a process."""
    import torch.profiler.profiler as profilers

    once = getattr(profilers, "_warn_once", None)
    if once is None:
        yield
        return

    def silent(*_: Any, **named: Any) -> None:
        pass

    setattr(profilers, "_warn_once", silent)  # noqa: B010
    try:
        yield
    finally:
        setattr(profilers, "_warn_once", once)  # noqa: B010


def leave_recording_to_parent() -> None:
    """Have this fork of a recorded process call none of its profiler's callbacks: CUPTI's abort in a fork."""
    from torch._C._autograd import _enable_record_function

    _enable_record_function(False)


_optimizer_made = False


def optimizer_made() -> bool:
    """Whether an optimizer was made: torch marks the ``step`` of its class then, checked on 2.11 and 2.13."""
    global _optimizer_made
    if not _optimizer_made:
        import torch

        left: list[type] = [torch.optim.Optimizer]
        while left and not _optimizer_made:
            kind = left.pop()
            _optimizer_made = bool(getattr(vars(kind).get("step"), "hooked", False))
            left += kind.__subclasses__()
    return _optimizer_made


def trains(module: Any) -> bool:
    """Whether a module has parameters that gradients are computed for.

    Unlike ``parameters()`` it calls nothing of the program's: neither modules' hashes nor methods of theirs.
    """
    seen, left = set[int](), [module]
    while left:
        attributes: dict[str, Any] = getattr(left.pop(), "__dict__", {})
        with asked_in_silence():
            if any(p is not None and p.requires_grad for p in attributes.get("_parameters", {}).values()):
                return True
        for inner in attributes.get("_modules", {}).values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                left.append(inner)
    return False


def submodule(module: Any, path: str) -> Any:
    """The module at ``path`` (``encoder.layers.0``) of another, None where there is none; calls nothing of
    the program's, unlike ``get_submodule``."""
    for name in path.split("."):
        module = getattr(module, "__dict__", {}).get("_modules", {}).get(name)
    return module


@contextlib.contextmanager
def profiler_variables_kept_in() -> Generator[None, None, None]:
    """torch.profiler sets variables for CUPTI in the environment, where the program's children would find
    them; the library itself has read them when it is started."""
    names = ("DISABLE_CUPTI_LAZY_REINIT", "TEARDOWN_CUPTI")
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def dynamo_counters() -> dict[str, dict[str, int]]:
    """``torch._dynamo.utils.counters``, or nothing where nothing was compiled."""
    module = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", {})
    return {
        str(group): {str(k): int(v) for k, v in values.items()}
        for group, values in counters.items()
        if values
    }


def when_cuda_starts(act: Callable[[], None]) -> None:
    """Call ``act`` once, when the program begins to use CUDA or ROCm; not at all where it has begun."""
    import torch

    if torch.backends.cuda.is_built() and not torch.cuda.is_initialized():
        torch.cuda._lazy_call(act)


def cuda_in_use() -> bool:
    import torch

    return torch.cuda.is_initialized()


def keep_memory_history(entries: int, *, releases: bool = False, anew: bool = True) -> None:
    """Have the allocator keep its latest allocations and releases, and where in Python each was requested; 0:
    no longer. Blocks that live on keep where they came from. ``releases``: releases have stacks of their own.
    ``anew``: forget what was kept before."""
    import torch

    torch.cuda.memory._record_memory_history(
        "all" if entries else None,
        context="all" if releases else "alloc",
        stacks="python",
        max_entries=max(entries, 1),
        clear_history=anew,
    )


def watch_empty_cache(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call these whenever the program begins and ends to give back what is cached; for good."""
    import torch

    for name in EMPTY_CACHE:
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, _watched(original, begins, ends))


def _watched(
    original: Callable[..., None], begins: Callable[[], None], ends: Callable[[], None]
) -> Callable[..., None]:
    def empty_cache(*given: Any) -> None:  # by this name analyses know it on a stack
        begins()
        try:
            original(*given)
        finally:
            ends()

    return empty_cache


def watch_peak_resets(before: Callable[[int], None]) -> None:
    """Call ``before`` with the device whenever the program is about to count its peaks anew; for good."""
    import torch

    for name in RESET_PEAKS:
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, _preceded(original, before))


def _preceded(original: Callable[[int], None], before: Callable[[int], None]) -> Callable[[int], None]:
    def reset_peaks(device: int) -> None:
        before(device)
        original(device)

    return reset_peaks


def memory_peaks(device: int) -> dict[str, int]:
    """The most that the allocator has counted since its peaks were reset; the driver is not queried."""
    import torch

    counts = torch.cuda.memory_stats_as_nested_dict(device)
    return {f"peak_{kind}_bytes": counts[f"{kind}_bytes"]["all"]["peak"] for kind in COUNTED}


def memory_history_is_kept() -> bool:
    import torch

    return bool(torch._C._cuda_isHistoryEnabled())


def memory_snapshot() -> object:
    """The allocator's memory of every device, block by block, and its history."""
    import torch

    return torch.cuda.memory._snapshot()


def memory_counters() -> Iterator[dict[str, int]]:
    """The allocator's and the driver's own counts for each device in use: fields of ``DeviceMemory``."""
    import torch

    for device in range(torch.cuda.device_count()):
        counts = torch.cuda.memory_stats(device)
        if not counts.get("reserved_bytes.all.peak"):
            continue  # asking the driver would take the device into use
        free, total = torch.cuda.mem_get_info(device)
        yield {
            "device": device,
            "free_bytes": free,
            "total_bytes": total,
            "retries": counts.get("num_alloc_retries", 0),
            "failures": counts.get("num_ooms", 0),
            **{f"{kind}_bytes": counts.get(f"{kind}_bytes.all.current", 0) for kind in COUNTED},
            **{f"peak_{kind}_bytes": counts.get(f"{kind}_bytes.all.peak", 0) for kind in COUNTED},
        }


def watch_out_of_memory(act: Callable[[int, int, int, int], None]) -> None:
    """Call ``act`` with the device, the bytes requested, the most that may be had and what the driver has
    free (all in bytes) whenever an allocation fails. It cannot be undone."""
    import torch

    getattr(torch._C, OUT_OF_MEMORY)(act)


def profiler_configuration(*, any_thread: bool, stacks: bool = False) -> Any:
    """Kineto's settings: no Python copy of its events, unless ``stacks`` are recorded, which are taken from
    it; with ``any_thread``, one recording of all threads."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=any_thread, trace_only=not stacks)
    except TypeError:  # before 2.12
        return _ExperimentalConfig(profile_all_threads=any_thread)


def result_dropped(profile: Any) -> None:
    """Free what a session of torch.profiler recorded, now that it is written.

    Left to the garbage collector, Kineto's result may outlive the next session, and its destructor then frees
    memory a second time: the program crashed when it ended (seen on 2.13, in one run of ten).
    """
    if getattr(profile, "profiler", None) is not None:
        profile.profiler.kineto_results = None


def profiler_runs() -> bool:
    """Whether a profiler of torch's is running, in whichever thread."""
    import torch.autograd.profiler as profilers

    return bool(getattr(profilers, "_is_profiler_enabled", False))


def profiler_stopped() -> None:
    """Have torch know that no profiler runs any more, where the session was ended without its Python code."""
    import torch.autograd.profiler as profilers

    stopped = getattr(profilers, "_run_on_profiler_stop", None)
    if stopped is not None:
        stopped()


def marked(name: str) -> None:
    """An event of that name in the running session, as short as may be: no dispatcher, and no op."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(name):
        pass


NEXT_BATCH = "_next_data"


def calls_that_load_data() -> Iterator[tuple[type, str]]:
    """Methods in which a loop waits for its data loader: for the next batch, and until workers have been
    started; none before the loader's module is imported."""
    module = sys.modules.get("torch.utils.data.dataloader")
    for name, method in (
        ("_SingleProcessDataLoaderIter", NEXT_BATCH),
        ("_MultiProcessingDataLoaderIter", NEXT_BATCH),
        ("_MultiProcessingDataLoaderIter", "__init__"),
    ):
        iterator: Any = getattr(module, name, None)
        if hasattr(iterator, method):
            yield iterator, method


def batch_is_ready(iterator: Any) -> bool | None:
    """Whether a batch that workers made lies ready for this loader's iterator; None: not known.

    C calls and attributes alone: Dynamo, which may compile the loop around it, finds no frame here.
    """
    try:
        known = iterator._task_info.get(iterator._rcvd_idx)
        if known is not None and len(known) > 1:  # it came before its turn
            return True
        arrived = iterator._data_queue
        pinned = getattr(arrived, "queue", None)  # of the thread that pins, in this process
        if pinned is not None:
            return len(pinned) > 0
        pipe = select.poll()
        pipe.register(arrived._reader._handle, select.POLLIN)
        return len(pipe.poll(0)) > 0
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def calls_that_wait() -> Iterator[tuple[Any, str]]:
    """The calls that return once the device has come as far: they read a value back, or synchronise."""
    import torch

    for name in (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
    ):
        yield torch.Tensor, name
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        yield owner, "synchronize"
    if hasattr(torch._C, "_cuda_synchronize"):
        yield torch._C, "_cuda_synchronize"


def reads_host(tensor: object) -> bool:
    """Whether a value of this is the host's in a program that uses a CUDA device: no call of it waits."""
    import torch

    with asked_in_silence():
        return isinstance(tensor, torch.Tensor) and tensor.is_cpu and torch.cuda.is_initialized()


def devices_in_use() -> int:
    """How many CUDA or ROCm devices this process has a context on."""
    import torch

    in_use: Callable[[int], bool] = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009
    return sum(map(in_use, range(torch.cuda.device_count())))


def wait_for_device() -> None:
    import torch

    torch.cuda.synchronize()


def process_group_exists() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
