"""Paths read into a ``LoadedRun``: the one room before analysis that opens files."""
