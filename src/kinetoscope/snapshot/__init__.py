"""Snapshots of torch's allocator, read: segments, blocks, and the history of both with its Python stacks."""
