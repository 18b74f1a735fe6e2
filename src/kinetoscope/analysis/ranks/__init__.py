"""Ranks of one run compared: their collectives paired, their clocks, who waited for whom, and why."""
