"""torch.profiler behind a few verbs: the only file that starts it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from kinetoscope.capture import torch_private
from kinetoscope.capture.options import Options

_OURS: WeakSet[Any] = WeakSet()


def is_ours(inner: Any) -> bool:
    """True for the ``torch.autograd.profiler.profile`` inside one of our sessions."""
    return any(profile.profiler is inner for profile in _OURS)


class ProfilerSession(Protocol):
    """One session of the profiler."""

    def prepare(self) -> None: ...
    def start(self) -> None: ...
    def mark(self, step: int | None) -> None: ...
    def stop(self) -> None: ...
    def export(self, path: Path) -> None: ...


class Device(Protocol):
    """What the recorder needs of torch."""

    def session(self, *, any_thread: bool) -> ProfilerSession: ...
    def synchronize(self) -> None: ...


class TorchProfilerSession:
    """A ``torch.profiler.profile``, with the program's own step numbers on its step annotations.

    Args:
        any_thread: record every thread, so that any may end the recording; costs a little more an event.
        cuda: the program uses a CUDA or ROCm device.
    """

    def __init__(self, options: Options, *, any_thread: bool = False, cuda: bool | None = None) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized() if cuda is None else cuda:
            activities.append(ProfilerActivity.CUDA)
        elif hasattr(torch, "xpu") and torch.xpu.is_initialized():
            activities.append(ProfilerActivity.XPU)
        self.profile = profile(
            activities=activities,
            record_shapes=options.shapes or options.flops,
            with_stack=options.stacks,
            profile_memory=options.memory,
            with_flops=options.flops,
            experimental_config=torch_private.profiler_configuration(any_thread=any_thread),
        )
        _OURS.add(self.profile)
        self.record_function: Callable[[str], Any] = torch.profiler.record_function
        self.step: Any = None

    def prepare(self) -> None:
        """Allocate buffers and switch the device's tracing on, a step before recording starts."""
        with warnings.catch_warnings():  # a reminder that events of earlier cycles are gone: there are none
            warnings.simplefilter("ignore")
            self.profile.prepare_trace()

    def start(self) -> None:
        self.profile.start_trace()

    def mark(self, step: int | None) -> None:
        """End the step that is running, and begin step number ``step`` (None: none)."""
        if self.step is not None:
            self.step.__exit__(None, None, None)
            self.step = None
        if step is not None:
            self.step = self.record_function(f"ProfilerStep#{step}")
            self.step.__enter__()

    def stop(self) -> None:
        self.profile.stop_trace()

    def export(self, path: Path) -> None:
        """Write the trace to ``path``, whole or not at all."""
        temporary = path.with_suffix(".part.json")
        self.profile.export_chrome_trace(str(temporary))
        temporary.replace(path)


class TorchDevice:
    """The devices of this process, through torch."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cuda = False  # set when CUDA is being initialized: torch says so only afterwards

    def session(self, *, any_thread: bool) -> ProfilerSession:
        import torch

        return TorchProfilerSession(
            self.options, any_thread=any_thread, cuda=self.cuda or torch.cuda.is_initialized()
        )

    def synchronize(self) -> None:
        """Wait for the device, if the program has begun to use one."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elif hasattr(torch, "xpu") and torch.xpu.is_initialized():
            torch.xpu.synchronize()
