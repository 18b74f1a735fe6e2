"""The state machine that times and records, and the profilers behind it."""
