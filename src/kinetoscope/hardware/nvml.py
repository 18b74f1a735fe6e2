"""NVML, read through ctypes: clocks, power, temperature and throttle reasons of one NVIDIA card.

The library comes with the driver, so no package is needed. Only reading functions are bound: nothing here can
change a setting of the card.

Source: https://docs.nvidia.com/deploy/nvml-api/ (nvml.h, checked with driver 580).
"""

from __future__ import annotations

import ctypes

import msgspec

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


class NvmlReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The card at one moment; None where it does not report it. ``power_limit_w`` is what is enforced, by
    whoever set it; ``application_clock_mhz`` of the multiprocessors, which newer cards do not report."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    application_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()


def load(library: ctypes.CDLL | None = None) -> ctypes.CDLL:
    """The driver's library, ready to be called. ``library``: the loaded ``libnvidia-ml`` (tests give their
    own). Raises NvmlError where it is not on this machine, or does not start."""
    if library is None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError(str(error)) from error
    if status := library.nvmlInit_v2():
        raise NvmlError(f"nvmlInit_v2 answered {status}")
    return library


class Card:
    """One card, by its UUID with or without the ``GPU-`` in front. ``library``: as `load` takes it. Raises
    NvmlError where there is no NVML here, or no such card."""

    def __init__(self, uuid: str, library: ctypes.CDLL | None = None) -> None:
        self._nvml = load(library)
        self._handle = ctypes.c_void_p()
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        status = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._handle))
        if status:
            raise NvmlError(f"nvmlDeviceGetHandleByUUID answered {status}")
        self._max_sm_clock_mhz = self._number("nvmlDeviceGetMaxClockInfo", _SM)

    def read(self) -> NvmlReading:
        """One reading; takes about a millisecond."""
        power, limit = map(self._number, ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"))
        reasons = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(reasons))
        return NvmlReading(
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", _SM),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            temperature_c=self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            application_clock_mhz=self._number("nvmlDeviceGetApplicationsClock", _SM),
            throttle_reasons=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons.value & bit),
        )

    def driver(self) -> str | None:
        text = ctypes.create_string_buffer(80)
        answered = self._ask("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return text.value.decode() if answered else None

    def _number(self, function: str, *which: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._ask(function, self._handle, *which, ctypes.byref(value)) else None

    def _ask(self, function: str, *arguments: object) -> bool:
        """Whether the card answers; cards differ in what they answer, and so do drivers."""
        try:
            return getattr(self._nvml, function)(*arguments) == 0
        except AttributeError:
            return False
