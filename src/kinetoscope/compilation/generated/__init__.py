"""The modules that Inductor writes, read: graphs, kernels and library calls, and where each is from."""
