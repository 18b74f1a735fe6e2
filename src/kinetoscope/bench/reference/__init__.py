"""What a kernel should have computed, and whether it did."""
