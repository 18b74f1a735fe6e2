"""The values that a kernel should have computed, and whether it did."""
