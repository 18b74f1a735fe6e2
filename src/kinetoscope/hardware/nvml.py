"""NVML, read through ctypes: clocks, power, temperature and throttle reasons of one NVIDIA card.

The library comes with the driver, so no package is needed. Only reading functions are bound: nothing here can
change a setting of the card.

Source: https://docs.nvidia.com/deploy/nvml-api/ (nvml.h, checked with driver 580).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_SM, _MEMORY = 1, 2
_TEMPERATURE_GPU = 0

# nvmlClocksEventReason* of nvml.h
THROTTLE_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


class NvmlError(Exception):
    """NVML is not on this machine, or does not know the card."""


class Reading(NamedTuple):
    """The card at one moment."""

    sm_clock_mhz: int
    max_sm_clock_mhz: int
    memory_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle_reasons: tuple[str, ...]


class Card:
    """One card, by its UUID with or without the ``GPU-`` in front.

    Args:
        library: the loaded ``libnvidia-ml`` (tests give their own).

    Raises:
        NvmlError: there is no NVML here, or no such card.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL("libnvidia-ml.so.1")
            except OSError as error:
                raise NvmlError(str(error)) from error
        self._nvml = library
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._handle))
        self._max_sm_clock_mhz = self._number("nvmlDeviceGetMaxClockInfo", _SM)

    def read(self) -> Reading:
        """One reading; takes about a millisecond."""
        reasons = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(reasons))
        return Reading(
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", _SM),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            temperature_c=self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            power_w=self._number("nvmlDeviceGetPowerUsage") / 1000,
            throttle_reasons=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons.value & bit),
        )

    def _number(self, function: str, *which: int) -> int:
        value = ctypes.c_uint()
        self._call(function, self._handle, *which, ctypes.byref(value))
        return value.value

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._nvml, function)(*arguments)
        if status:
            raise NvmlError(f"{function} answered {status}")
