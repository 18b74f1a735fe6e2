"""Where the program runs: versions, devices, memory, clocks, and variables that matter and hold no secret."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from importlib import metadata
from pathlib import Path

import msgspec

from kinetoscope.hardware import nvml
from kinetoscope.recording.manifest import ClockSample, DeviceInfo, Environment

try:  # here and not where it is used: a program may have a module of that name
    import resource
except ImportError:  # no such module but on POSIX
    resource = None

# Names, not patterns, wherever a family of variables could hold a token or an address.
VARIABLES = re.compile(
    r"""
    (TORCH|TORCHINDUCTOR|TORCHDYNAMO|TORCH_NCCL|INDUCTOR|PYTORCH|TRITON|NCCL|KINETO|CUDNN|CUBLAS|MIOPEN|HIP|ROCM)_
        (?!.*(TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL|AUTH|URL|REDIS|ENDPOINT))[A-Z0-9_]+
    | CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|MODULE_LOADING|CACHE_DISABLE)
    | CUDA_(DEVICE_MAX_COPY_CONNECTIONS|SCALE_LAUNCH_QUEUES|FORCE_PTX_JIT|DISABLE_PTX_JIT|AUTO_BOOST)
    | NVIDIA_TF32_OVERRIDE | NVTE_(FLASH_ATTN|FUSED_ATTN|UNFUSED_ATTN|ALLOW_NONDETERMINISTIC_ALGO)
    | HSA_XNACK | GPU_MAX_HW_QUEUES | VLLM_(ATTENTION_BACKEND|USE_V1)
    | ACCELERATE_(MIXED_PRECISION|DYNAMO_BACKEND|DYNAMO_MODE|USE_FSDP|USE_DEEPSPEED)
    | (OMP|MKL|OPENBLAS)_NUM_THREADS | OMP_(PROC_BIND|PLACES|SCHEDULE|DYNAMIC|WAIT_POLICY)
    | KMP_(AFFINITY|BLOCKTIME) | GOMP_CPU_AFFINITY | ATEN_CPU_CAPABILITY | ONEDNN_MAX_CPU_ISA | MALLOC_CONF
    | RANK | LOCAL_RANK | WORLD_SIZE | LOCAL_WORLD_SIZE | GROUP_RANK
    | PYTHON(HASHSEED|OPTIMIZE|UNBUFFERED|DEVMODE)
    """,
    re.VERBOSE,
)


def variables() -> dict[str, str]:
    """The variables of this process that a recording may hold."""
    return {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}


def describe(driver: str | None = None) -> Environment:
    """This process's environment; devices only where the program itself has begun to use them."""
    import torch

    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=_version("triton"),
        cuda=torch.version.cuda,
        rocm=getattr(torch.version, "hip", None),
        host=platform.node(),
        cpu=cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        devices=devices(driver),
        variables=variables(),
    )


def devices(driver: str | None = None) -> tuple[DeviceInfo, ...]:
    import torch

    if not torch.cuda.is_initialized():
        return ()
    listed: list[DeviceInfo] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        listed.append(
            DeviceInfo(
                index=index,
                name=str(properties.name),
                kind="rocm" if getattr(torch.version, "hip", None) else "cuda",
                total_memory_bytes=int(properties.total_memory),
                compute_capability=(int(properties.major), int(properties.minor)),
                multiprocessors=int(properties.multi_processor_count),
                driver=driver,
            )
        )
    return tuple(listed)


def peak_memory_bytes() -> int | None:
    """The most that this process has used so far of its device; of the host where it uses none."""
    import torch

    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _version(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return str(getattr(loaded, "__version__", "")) or None
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def sample(card: nvml.Card, device: int, moment: str) -> ClockSample:
    """One device's readings now; those that it does not report are None."""
    reading = msgspec.structs.asdict(card.read())
    return ClockSample(device=device, time_ns=time.time_ns(), moment=moment, **reading)


class Clocks:
    """Samples of the device that this process uses, taken at named moments."""

    def __init__(self) -> None:
        self.samples: list[ClockSample] = []
        self.card: nvml.Card | None = None
        self.missing = False
        self.device = 0

    def sample(self, moment: str) -> None:
        """Read the device torch is using now; nothing where it uses none."""
        import torch

        if self.missing or not torch.cuda.is_initialized() or torch.version.cuda is None:
            return
        if self.card is None:
            self.device = torch.cuda.current_device()
            try:
                self.card = nvml.Card(str(torch.cuda.get_device_properties(self.device).uuid))
            except (nvml.NvmlError, AttributeError):
                self.missing = True
                return
        self.samples.append(sample(self.card, self.device, moment))

    def driver(self) -> str | None:
        """The driver's version, once a device was read."""
        return None if self.card is None else self.card.driver()
