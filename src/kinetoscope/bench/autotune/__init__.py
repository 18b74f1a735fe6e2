"""Which kernels are worth tuning, their configurations tried, and what the winners promise."""
