"""Measuring kernels: the harness, its timers, its results."""
