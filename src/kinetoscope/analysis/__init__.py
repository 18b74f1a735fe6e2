"""Pure functions from traces to tables: they never print, plot or touch the disk."""
