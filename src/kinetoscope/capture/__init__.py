"""Runs the user's program and records it; the only room that imports torch.profiler."""
