"""Meanings of the names in a trace: ``explanation`` has known ones, ``kernel_names`` those that are built."""
