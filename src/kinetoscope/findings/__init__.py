"""Rules that find what is slow, why, and what to change: ranked by the time that their advice would save."""
