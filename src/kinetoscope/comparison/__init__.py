"""Two or more runs beside each other: what changed in the step, by how much, because of what."""
