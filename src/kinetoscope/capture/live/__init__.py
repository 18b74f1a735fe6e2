"""A server that runs: some of its steps recorded on request, while it serves."""
