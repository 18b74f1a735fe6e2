"""When a device did nothing, why, and who was waited for."""
