"""The harness, its statistics, and what is measured with it."""
