"""One listing a verb."""
