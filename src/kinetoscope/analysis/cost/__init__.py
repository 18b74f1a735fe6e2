"""FLOPs and bytes of ops, and how near kernels come to what the device can do."""
