"""Paths read into a ``Run``: the one room before analysis that opens files."""
