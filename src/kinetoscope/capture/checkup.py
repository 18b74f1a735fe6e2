"""Checks of what this machine lets a profiler see: one per function, answered even without torch."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kinetoscope import __version__
from kinetoscope.capture.compiler import backends
from kinetoscope.hardware import nvml

OLDEST_TORCH = (2, 9)
FREE_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Check:
    name: str
    state: str  # ok, missing (something cannot be seen), or note (no change is needed, but worth knowing)
    text: str
    hint: str | None = None  # the command or change that fixes it


def checkup() -> list[Check]:
    """Every check, in the order in which one needs the other."""
    torch, broken = _import_torch()
    checks = [_python(), *_packages(), _torch(torch, broken)]
    if torch is not None:
        checks += [
            *_bytecode(torch),
            _kineto(torch),
            *_devices(torch),
            *_compiler(torch),
            *_backends(torch),
        ]
    checks += [_nvml(), _counters(), _perf(), _disk(), *_variables()]
    return checks


def _import_torch() -> tuple[Any, Exception | None]:
    try:
        import torch
    except Exception as error:  # a broken installation fails in any way it likes
        return None, error
    return torch, None


def _python() -> Check:
    return Check(
        "python", "ok", f"{platform.python_version()} at {sys.executable}, kinetoscope {__version__}"
    )


def _packages() -> Iterator[Check]:
    for package in ("polars", "msgspec", "jinja2", "rich"):
        installed = _version(package)
        if installed is None:
            yield Check(package, "missing", "recordings cannot be read", f"pip install {package}")
        else:
            yield Check(package, "ok", installed)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch(torch: Any, broken: Exception | None) -> Check:
    if isinstance(broken, ModuleNotFoundError):
        text = "not installed: recordings can be read, nothing can be recorded"
        return Check(
            "torch", "missing", text, "pip install torch, into the environment of the program to record"
        )
    if broken is not None:
        hint = "unset TORCH_LOGS" if os.environ.get("TORCH_LOGS") == "" else "reinstall torch"
        return Check("torch", "missing", f"cannot be imported: {type(broken).__name__}: {broken}", hint)
    installed = str(torch.__version__)
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST_TORCH:
        return Check(
            "torch",
            "missing",
            f"{installed} is older than what kinetoscope records with",
            "upgrade to torch 2.9",
        )
    return Check("torch", "ok", installed)


def _bytecode(torch: Any) -> Iterator[Check]:
    """A note where torch was installed without bytecode and none was kept since: its Dynamo, which every
    optimizer imports, took 9 s so."""
    kept = torch.__spec__.cached
    if kept is None or not os.path.exists(kept):
        hint = f"python -m compileall -q {Path(torch.__file__).parent}"
        if sys.dont_write_bytecode:
            hint += ", or unset PYTHONDONTWRITEBYTECODE"
        text = "torch has no bytecode: each process compiles anew all that it imports, for seconds"
        yield Check("bytecode", "note", text, hint)


def _kineto(torch: Any) -> Check:
    if not torch.profiler.kineto_available():
        return Check(
            "kineto",
            "missing",
            "this torch was built without its tracing library",
            "install an official build",
        )
    activities = sorted(
        str(activity).rpartition(".")[2] for activity in torch.profiler.supported_activities()
    )
    return Check("kineto", "ok", f"can record {', '.join(activities)}")


def _devices(torch: Any) -> Iterator[Check]:
    if not torch.cuda.is_available():
        if torch.version.cuda or getattr(torch.version, "hip", None):
            hint = "check `nvidia-smi` (or `rocm-smi`), the driver, and CUDA_VISIBLE_DEVICES"
            yield Check("device", "missing", "torch sees no GPU, though it was built for one", hint)
        else:
            yield Check(
                "device", "note", "this torch is built for CPUs: operators are seen, GPU kernels are not"
            )
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Check("device", "ok", f"{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    yield _sees_kernels(torch)


def _sees_kernels(torch: Any) -> Check:
    """Record one kernel: the only proof that CUPTI (or roctracer) works here."""
    from torch.profiler import ProfilerActivity, profile

    warnings.simplefilter("ignore")  # a reminder that events of earlier cycles are gone: there are none
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recording:
        torch.ones(1024, device="cuda").add_(1)
        torch.cuda.synchronize()
    kernels = [event for event in recording.events() or () if event.device_type.name in ("CUDA", "HIP")]
    if kernels:
        return Check("kernels", "ok", f"a test kernel was recorded ({len(kernels)} device events)")
    hint = (
        "end other profilers of this GPU (nsys, DCGM, another torch.profiler); "
        "in a container allow the driver's tools"
    )
    return Check(
        "kernels", "missing", "a test kernel ran and was not recorded: CUPTI does not work here", hint
    )


def _compiler(torch: Any) -> Iterator[Check]:
    triton, gpu = _version("triton"), torch.cuda.is_available()
    if triton is None:
        text = "not installed: torch.compile cannot generate GPU kernels"
        yield Check("triton", "missing" if gpu else "note", text, "pip install triton" if gpu else None)
    else:
        yield Check("triton", "ok", triton)
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler:
        yield Check("c++", "ok", compiler)
    else:
        yield Check("c++", "missing", "torch.compile needs a C++ compiler for CPU code", "apt install g++")


def _backends(torch: Any) -> Iterator[Check]:
    """The backends of torch.compile: those that can be named here, and what the others need."""
    nvidia = torch.cuda.is_available() and bool(torch.version.cuda)
    for backend in backends.BACKENDS:
        name = f"backend {backend.name}"
        if not backend.installed:
            yield Check(name, "note", f"not here: {backend.does}; {backend.hardware}", backend.needs)
        elif backend.hardware == "NVIDIA GPUs" and not nvidia:
            yield Check(name, "note", f"installed, but no NVIDIA GPU is here: {backend.does}")
        else:
            how = f"; the program must import {backend.module}" if backend.imported else ""
            yield Check(name, "ok", f"{backend.does}; {backend.hardware}{how}")


def _nvml() -> Check:
    try:
        nvml.load()
    except nvml.NvmlError as error:
        if shutil.which("nvidia-smi") is None:
            return Check("nvml", "note", "no NVIDIA driver: clocks, power and temperature are not read")
        hint = f"libnvidia-ml.so.1 comes with the driver: {error}"
        return Check("nvml", "missing", "clocks, power and temperature of the GPU are not read", hint)
    return Check("nvml", "ok", "clocks, power and temperature of the GPU are read")


def _counters() -> Check:
    """Whether hardware counters (ncu) are open to this user; tracing needs none of it."""
    try:
        text = Path("/proc/driver/nvidia/params").read_text()
    except OSError:
        return Check(
            "counters", "note", "no NVIDIA driver's settings here: hardware counters (ncu) were not checked"
        )
    restricted = "RmProfilingAdminOnly: 1" in text
    if restricted and hasattr(os, "geteuid") and os.geteuid() != 0:
        hint = "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reboot"
        return Check(
            "counters", "missing", "hardware counters (ncu) are for administrators only; traces are not", hint
        )
    where = shutil.which("ncu")
    return Check(
        "counters", "ok", f"open to this user{f', ncu at {where}' if where else '; ncu is not installed'}"
    )


def _perf() -> Check:
    try:
        level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return Check("perf", "note", "the kernel's perf events were not checked")
    if level > 2:
        hint = "sysctl kernel.perf_event_paranoid=2"
        return Check(
            "perf", "note", f"perf_event_paranoid is {level}: CPU samplers (perf, nsys) see little here", hint
        )
    return Check("perf", "ok", f"perf_event_paranoid is {level}")


def _disk() -> Check:
    free = shutil.disk_usage(".").free
    text = f"{free / 1e9:.1f} GB free here, where recordings go"
    if not os.access(".", os.W_OK):
        return Check(
            "disk", "missing", "this folder cannot be written", "run elsewhere, or name a folder with --out"
        )
    if free > FREE_BYTES:
        return Check("disk", "ok", text)
    return Check("disk", "missing", text, "free some, or use --out")


# Variables under which a program runs otherwise than a user may think: the value that does it, and what it
# does.
MISLEADING = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel: timings are not the program's"),
    "TORCH_LOGS": ("", "empty: import torch fails"),
    "TORCH_COMPILE_DISABLE": ("1", "torch.compile does nothing"),
    "TORCHDYNAMO_DISABLE": ("1", "torch.compile does nothing"),
    "TORCH_COMPILE_DEBUG": ("1", "compilations are slow, and write files next to the program"),
    "KINETO_USE_DAEMON": ("1", "another tool may start the profiler"),
}


def _variables() -> Iterator[Check]:
    for name, (value, meaning) in MISLEADING.items():
        if os.environ.get(name) == value:
            yield Check("variable", "note", f"{name}={value}: {meaning}", f"unset {name}")
