"""Peak rates of devices: ``find(name)`` looks one up in the table."""

from kinetoscope.hardware.table import DTYPES, DeviceSpec, find

__all__ = ["DTYPES", "DeviceSpec", "find"]
