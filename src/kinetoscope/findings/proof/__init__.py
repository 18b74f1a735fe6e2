"""The commands that try what findings advise, and what they measured."""
