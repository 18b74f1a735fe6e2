"""Programs that must do under `kinetoscope run` what they do without it, and what compares the two."""
