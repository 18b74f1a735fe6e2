"""Thin fronts for other tools: pytest, IPython."""
