"""What the compiler made, joined with what the device ran."""
