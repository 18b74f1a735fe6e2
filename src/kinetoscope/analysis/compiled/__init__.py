"""Compiled graphs and kernels of the compile log, joined with the device work of the trace."""
