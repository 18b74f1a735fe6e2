"""The messages of torch.compile and the arguments of kernels, written down while the program runs."""
