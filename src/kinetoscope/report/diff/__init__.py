"""Two runs beside each other: their document filled, and rendered for terminals, reviews and browsers."""
