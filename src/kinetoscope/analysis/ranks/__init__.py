"""Ranks of one run compared: who was late, why, and how long the run would take if no rank were."""
