"""What stands under a path, read into a ``Run``: the one room before analysis that opens files."""
