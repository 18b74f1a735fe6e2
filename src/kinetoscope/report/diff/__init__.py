"""Two runs beside each other, as a document and rendered: for terminals, reviews and browsers."""
