"""The GPU's clocks, temperature, power and driver through NVML, where nvidia-ml-py is installed."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from kinetoscope.recording.manifest import ClockSample

# NVML's bits, in the words that its documentation uses.
THROTTLES = {
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


def load() -> ModuleType | None:
    """NVML's binding, ready to be asked; None where there is no binding, no driver or no NVIDIA device."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, NVMLError, or a broken binding: there is nothing to read then
        return None
    return pynvml


def read(nvml: Any, handle: Any, device: int, moment: str) -> ClockSample:
    """What one device reports now; what it does not support is None."""

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    power = ask("nvmlDeviceGetPowerUsage")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return ClockSample(
        device=device,
        time_ns=time.time_ns(),
        moment=moment,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=power / 1000 if power is not None else None,
        throttle_reasons=tuple(word for bit, word in THROTTLES.items() if reasons & bit),
    )


class Clocks:
    """Samples of the device that this process uses, taken at named moments."""

    def __init__(self) -> None:
        self.samples: list[ClockSample] = []
        self.nvml: Any = None
        self.handle: Any = None
        self.device = 0

    def sample(self, moment: str) -> None:
        """Read the device torch is using now; nothing where it uses none."""
        import torch

        if not torch.cuda.is_initialized() or torch.version.cuda is None:
            return
        if self.nvml is None:
            self.nvml = load()
        if self.nvml is None:
            return
        try:
            if self.handle is None:
                self.device = torch.cuda.current_device()
                uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            self.samples.append(read(self.nvml, self.handle, self.device, moment))
        except (self.nvml.NVMLError, AttributeError):
            self.nvml = None

    def driver(self) -> str | None:
        if self.nvml is None:
            return None
        version = self.nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
