"""Every private PyTorch name that capture depends on, in one place.

Checked on PyTorch 2.9.1, 2.11.0 and 2.13.0. Each is looked up when needed; where one is missing the feature that
needs it is off, and the caller says so in the recording's notes.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

# Loggers whose messages are no part of the structured log; with the name TORCH_LOGS knows them by.
TAPPED_LOGGERS = {
    "torch._inductor.scheduler.__fusion": "fusion",
    "torch._inductor.debug.__ir_pre_fusion": "ir_pre_fusion",
    "torch._inductor.debug.__ir_post_fusion": "ir_post_fusion",
    "torch._inductor.cudagraph_trees.__cudagraphs": "cudagraphs",
    "torch._inductor.cudagraph_utils.__cudagraphs": "cudagraphs",
    "torch._inductor.scheduler.__cudagraphs": "cudagraphs",
}
STRUCTURED_LOGGER = "torch.__trace"

EVAL_FRAME = "torch._dynamo.eval_frame"
CONVERT_FRAME = "torch._dynamo.convert_frame"
COMPILE_CALLBACKS = "torch._dynamo.callback"


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


def hide_from_dynamo(*functions: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling these functions where the user's compiled code happens to call them."""
    import torch._C._dynamo.eval_frame as evaluation

    strategy = evaluation._FrameExecStrategy(evaluation._FrameAction.SKIP, evaluation._FrameAction.DEFAULT)
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
        callback_handler.remove_start_callback(started)
        callback_handler.remove_end_callback(ended)

    callback_handler.register_start_callback(started)
    callback_handler.register_end_callback(ended)
    return remove


def module_call_codes() -> frozenset[CodeType]:
    """The code of the functions that are on the stack while any module's forward runs."""
    from torch.nn import Module

    return frozenset((Module._wrapped_call_impl.__code__, Module._call_impl.__code__))


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
    """Call ``act`` once, when the program begins to use CUDA or ROCm; not at all where it has begun already."""
    import torch

    if torch.backends.cuda.is_built() and not torch.cuda.is_initialized():
        torch.cuda._lazy_call(act)


def profiler_configuration(*, any_thread: bool) -> Any:
    """Kineto's settings: no Python copy of its events; with ``any_thread``, one recording of all threads."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=any_thread, trace_only=True)
    except TypeError:  # before 2.12
        return _ExperimentalConfig(profile_all_threads=any_thread)
