"""Memory of PyTorch's allocator, from its history: who owned it at the peak, and what would free it; bytes."""
