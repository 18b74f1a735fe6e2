"""The structured compile log and the generated modules, read."""
