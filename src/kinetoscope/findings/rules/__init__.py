"""The rules. Each module is one: its name is the slug, its docstring is its documentation (see ``registry``)."""
