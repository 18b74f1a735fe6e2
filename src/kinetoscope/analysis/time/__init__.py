"""Windows, steps, phases and busy time, by the device's clock."""
