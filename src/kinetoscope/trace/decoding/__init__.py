"""Bytes to packed columns, in processes of their own: msgspec and the standard library are all they load."""
