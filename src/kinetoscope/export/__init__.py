"""A run's tables in the formats of other tools."""
