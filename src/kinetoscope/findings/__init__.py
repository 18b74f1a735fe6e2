"""What is slow, why, and what to change: one rule a file, ranked by the time that its advice would save."""
