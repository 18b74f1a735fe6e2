"""A subject's view is one file: it turns rows of the document into a list of blocks."""
