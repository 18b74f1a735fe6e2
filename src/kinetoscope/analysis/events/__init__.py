"""Events by what encloses them and what they are called, and the names that PyTorch, CUDA and HIP write."""
