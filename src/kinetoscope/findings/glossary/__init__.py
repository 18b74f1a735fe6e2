"""What the names in a trace mean: ``terms`` for those that are known, ``kernel_names`` for those that are built."""
