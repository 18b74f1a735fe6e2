"""Everything that a renderer shows, as typed rows."""
