"""What kernels are called with in one step: `kinetoscope run --kernel-inputs`.

Kept are the integer and boolean tensors of kernels that Inductor generated (indices decide the speed of
gathers and scatters), and everything about hand-written Triton kernels that a later launch needs. The first
call of each kernel counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kinetoscope.capture import torch_private
from kinetoscope.capture.compiler.stream import Stream
from kinetoscope.capture.compiler.user_kernels import describe, tensor_shape
from kinetoscope.capture.hooks.calls import hook
from kinetoscope.recording.inputs import SCHEMA, GeneratedKernel, Inputs, SavedTensor, UserKernel

MOST_BYTES = 64 << 20


class KernelInputs:
    """Watches kernel launches between `start` and `stop`; a failure is a note, never the program's."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.home, self.rank, self.pid = folder / "inputs", rank, os.getpid()
        self.lock = threading.Lock()
        self.removers: list[Callable[[], None]] = []
        self.data: Stream | None = None
        self.written = 0
        self.generated: dict[str, list[SavedTensor]] = {}
        self.user: dict[str, UserKernel] = {}
        self.left_out = 0
        self.done = False
        self.notes: list[str] = []

    def start(self) -> None:
        """Watch from here on. Kernels replayed by a CUDA graph are launched by nobody, and not seen."""
        with self._harmlessly():
            self.data = Stream(self.home / f"rank{self.rank}.bin")
            self.data.write(b"")
            for module, name, see in (
                (torch_private.TRITON_HEURISTICS, "CachingAutotuner", self._generated),
                (torch_private.TRITON_JIT, "JITFunction", self._user),
            ):
                owner: Any = getattr(sys.modules.get(module), name, None)
                if owner is not None and hasattr(owner, "run"):
                    self.removers.append(hook(owner, "run", seeing=see))
                    torch_private.hide_from_dynamo(owner.run)

    @property
    def watching(self) -> bool:
        """Between `start` and `stop`."""
        return self.data is not None

    def remove(self) -> None:
        """Take the watch out of the program."""
        for remove in self.removers:
            remove()
        self.removers, self.data = [], None

    def stop(self) -> None:
        """End the watch and write the index."""
        with self._harmlessly(), self.lock:
            if self.data is None:
                return
            self.data.close()
            failure = self.data.failure
            self.remove()
            self.done = True
            if failure is not None:
                self.notes.append(f"kernel inputs were not kept: {failure}")
                return
            found = Inputs(
                schema=SCHEMA,
                generated=tuple(
                    GeneratedKernel(kernel=name, arguments=tuple(saved))
                    for name, saved in self.generated.items()
                    if saved
                ),
                user=tuple(self.user.values()),
            )
            text = msgspec.json.format(msgspec.json.encode(found), indent=1)
            (self.home / f"rank{self.rank}.json").write_bytes(text)
            if self.left_out:
                most = f"{MOST_BYTES >> 20} MiB"
                self.notes.append(
                    f"kernel inputs: {self.left_out} tensors were left out, beyond {most} in all"
                )
            if not self.generated and not self.user:
                self.notes.append(
                    "kernel inputs: "
                    "no Triton kernel was launched by Python in the step after the recorded ones"
                )

    def end(self) -> None:
        """The program ends: keep what was seen, and say what was not."""
        if self.watching:
            self.notes.append("kernel inputs: the program ended during the step that was watched")
            self.stop()
        elif not self.done and not self.notes:
            self.notes.append("kernel inputs were not kept: no step followed the recorded ones")

    @contextlib.contextmanager
    def _harmlessly(self) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            self.notes.append(f"kernel inputs were not kept: {type(error).__name__}: {error}")
            self.remove()

    def _generated(self, autotuner: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        name = str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__)
        if name in self.generated or not self._usable():
            return
        with self.lock:
            saved = self.generated.setdefault(name, [])
            saved += self._save(arguments)

    def _user(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        if named.get("warmup") or os.getpid() != self.pid or self.data is None:
            return
        key = f"{getattr(function, '__module__', '')}.{function.__name__}"
        with self.lock:
            if (known := self.user.get(key)) is not None:
                self.user[key] = msgspec.structs.replace(known, launches=known.launches + 1)
                return
            try:
                kernel, values = describe(function, arguments, named)
                saved = tuple(self._save(values)) if self._usable() else ()
                self.user[key] = msgspec.structs.replace(kernel, arguments=saved)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                self.user[key] = UserKernel(kernel=function.__name__, launches=1, unusable=why)

    def _usable(self) -> bool:
        """Whether tensors may be read now: in this process, and in no CUDA graph that is being captured."""
        torch: Any = sys.modules["torch"]
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        return os.getpid() == self.pid and self.data is not None and not capturing

    def _save(self, arguments: Sequence[Any]) -> Iterator[SavedTensor]:
        """Write the integers and booleans among a kernel's arguments, as far as there is room."""
        torch: Any = sys.modules["torch"]
        for position, value in enumerate(arguments):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_floating_point():
                continue
            if value.is_complex() or self.data is None:
                continue
            size = value.numel() * value.element_size()
            if self.written + size > MOST_BYTES:
                self.left_out += 1
                continue
            values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.data.write(bytes(values.untyped_storage())[:size] if size else b"")
            yield SavedTensor(position=position, at=self.written, **tensor_shape(value))
            self.written += size
