"""The harness, and what is measured with it."""
