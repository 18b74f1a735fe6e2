"""What the names in a trace mean: ``terms`` for known ones, ``kernel_names`` for those that are built."""
