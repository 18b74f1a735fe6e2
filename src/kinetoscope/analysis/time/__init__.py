"""Windows, steps, busy time and memory over time."""
