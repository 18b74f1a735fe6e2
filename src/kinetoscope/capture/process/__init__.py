"""Starting the program as its own interpreter would, and what is needed inside it."""
