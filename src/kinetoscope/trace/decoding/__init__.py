"""What runs in decoding processes: msgspec and the standard library alone."""
