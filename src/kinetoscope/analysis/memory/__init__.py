"""What the allocator's memory held, whose it was, and what would free it; all in bytes, from its history."""
