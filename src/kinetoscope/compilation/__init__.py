"""Compile logs of torch, read: frames, guards, graph breaks, recompilations, graphs, fusion, kernels."""
