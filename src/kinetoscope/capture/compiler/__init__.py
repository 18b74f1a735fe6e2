"""What torch.compile says and what kernels are called with, written down while the program runs."""
