"""Noticing what the program imports and calls, without being noticed."""
