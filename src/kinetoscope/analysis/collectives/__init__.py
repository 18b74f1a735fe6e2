"""Collectives: as each rank recorded them, paired over ranks on one clock, and who waited in them."""
