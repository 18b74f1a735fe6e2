"""A profile's tables in the formats of other tools."""
