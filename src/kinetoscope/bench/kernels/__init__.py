"""Generated kernels and modules, rebuilt from a recording and timed alone."""
