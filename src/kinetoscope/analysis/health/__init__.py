"""How far a recording can be trusted: its weaknesses, and what each does to the numbers."""
