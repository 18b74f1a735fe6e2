"""Thin fronts: a plugin for pytest, magics for notebooks."""
