"""Two or more runs compared: what changed in the step, by how much, because of what."""
