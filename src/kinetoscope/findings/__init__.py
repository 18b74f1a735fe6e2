"""One rule a file: what is slow, why, what to do, and what it would save."""
