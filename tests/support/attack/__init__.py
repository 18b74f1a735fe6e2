"""Attacks by chance on what users give to the commands: inputs, outputs, and the process they run in."""
