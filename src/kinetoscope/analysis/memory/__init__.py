"""Memory of PyTorch's allocator: who owned it at the peak, and what would free it; all in bytes."""
