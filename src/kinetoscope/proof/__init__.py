"""The savings that findings predict, measured: by `bench` and `tune`, or by a second recording."""
