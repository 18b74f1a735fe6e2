"""Peak rates of devices."""
