"""The GPU's clocks, temperature, power and driver during a run, through NVML."""

from __future__ import annotations

import time

from kinetoscope.hardware import nvml
from kinetoscope.recording.manifest import ClockSample


def sample(card: nvml.Card, device: int, moment: str) -> ClockSample:
    """What one device reports now; what it does not tell is None."""
    return ClockSample(device=device, time_ns=time.time_ns(), moment=moment, **card.read()._asdict())


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
