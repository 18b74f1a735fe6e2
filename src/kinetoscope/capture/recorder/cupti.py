"""CUPTI, which torch's profiler leaves attached to the process once it has run.

Its hooks in every call of the runtime make a step that the host sets the pace of 1.2 to 1.4 times as long
(docs/evidence/everyday.md): steps timed after a recording were not the program's. The profiler attaches it
again when it is needed next.

NVIDIA allows ``cuptiFinalize`` only where no call of CUDA is in flight, and it crashes where one is. So it is
called only where every other thread of the process is known to be outside of CUDA, and to stay there:

- No thread of Python's can run: the call and what comes right before it keep the interpreter's lock, and
  each of them waits in a function of the standard library that calls nothing of CUDA's.
- No other thread has run between two looks at them: one in the middle of a call of CUDA would have, the
  device being idle.
- No CUDA graph has been replayed while it was attached and traced nothing (`Captures.untraced`).
- Nothing is there whose threads call CUDA by the clock (NCCL's watchdog, MPS), nor another tool that is
  attached to CUDA, nor a second device.

Where one of these does not hold, CUPTI stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import FrameType

from kinetoscope.capture import torch_private

# CUDA 13.0: tried with eager programs, and with CUDA graphs right after they were traced. Before CUDA 12.6,
# graphs did not survive it (pytorch issue 75504), and versions between the two are untried.
TRIED = 130_000
# Set for programs that other tools are attached to, or that share the device through MPS.
OTHERS = (
    "CUDA_INJECTION64_PATH",
    "CUDA_MPS_PIPE_DIRECTORY",
    "NVTX_INJECTION64_PATH",
    "NV_SANITIZER_INJECTION_PORT_BASE",
)
# Where a thread of Python's waits for others, and calls nothing of CUDA's before it has the interpreter's
# lock.
WAITING = (
    "/asyncio/",
    "/concurrent/futures/",
    "/multiprocessing/",
    "/queue.py",
    "/selectors.py",
    "/socket.py",
    "/socketserver.py",
    "/subprocess.py",
    "/threading.py",
    "/torch/_inductor/compile_worker/subproc_pool.py",
)
LOOK_S = 0.002
LOOKS = 5


def detach(maps: Path = Path("/proc/self/maps"), tasks: Path = Path("/proc/self/task")) -> bool:
    """Detach CUPTI where that is known to be safe; False: it stays attached.

    No profiler may be running and no graph be captured. A thread that happens to run is waited for, a moment.
    """
    loaded = _library(maps)
    if loaded is None or not _alone(os.environ):
        return False
    return any(_others_rest(tasks) and _detached(loaded, tasks) for _ in range(LOOKS))


def _detached(loaded: str, tasks: Path) -> bool:
    """Detach it if all is still at rest once nothing of Python's can run."""
    try:
        cupti = ctypes.PyDLL(loaded)  # keeps the interpreter's lock while it is called
        version = ctypes.c_uint32()
        if cupti.cuptiGetVersion(ctypes.byref(version)) != 0 or version.value < TRIED:
            return False
        with _interpreter_kept() as kept:
            torch_private.wait_for_device()
            return kept and _others_rest(tasks) and _pythons_wait() and cupti.cuptiFinalize() == 0
    except (OSError, AttributeError, RuntimeError):
        return False


@contextlib.contextmanager
def _interpreter_kept() -> Generator[bool]:
    """Keep the interpreter's lock but where a call gives it up; False where there is no such lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield False
        return
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    try:
        # Threads that wait for the lock ask for it after the interval they began to wait with: let them, and
        # give it up once, and all of them wait for ten seconds.
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(2e6 * before)))
        time.sleep(0)
        yield True
    finally:
        sys.setswitchinterval(before)


def _library(maps: Path) -> str | None:
    """The file of the CUPTI that this process has loaded; None where there is none, or several."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:  # no such file but on Linux
        return None
    paths = {line.split(maxsplit=5)[-1] for line in lines if "libcupti.so" in line}
    return paths.pop() if len(paths) == 1 else None


def _alone(variables: Mapping[str, str]) -> bool:
    """Whether nothing is there whose threads call CUDA by the clock, no other tool and no second device."""
    others = torch_private.process_group_exists() or any(name in variables for name in OTHERS)
    return not others and torch_private.devices_in_use() == 1


def _others_rest(tasks: Path) -> bool:
    """Whether no other thread runs, whoever started it."""
    before = _switches(tasks)
    time.sleep(LOOK_S)
    return before is not None and before == _switches(tasks)


def _pythons_wait() -> bool:
    """Whether all of Python's other threads wait for something that is not CUDA."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    # This function's own frame would be in a cycle, which kept the program's variables alive.
    del frames[threading.get_ident()]
    try:
        return all(map(waits, frames.values()))
    finally:
        frames.clear()


def waits(frame: FrameType) -> bool:
    """Whether a thread of Python's is in a function that only waits."""
    path = frame.f_code.co_filename.replace("\\", "/")
    return any(part in path for part in WAITING)


def _switches(tasks: Path) -> dict[str, str] | None:
    """How often each other thread got a processor and left it; None: unknown, or one is running."""
    own = str(threading.get_native_id())
    counted: dict[str, str] = {}
    try:
        for task in tasks.iterdir():
            if task.name != own:
                status = (task / "status").read_text()
                counts = [line for line in status.splitlines() if "ctxt_switches" in line]
                if len(counts) != 2 or "State:\tR" in status:
                    return None
                counted[task.name] = " ".join(counts)
    except OSError:
        return None
    return counted
