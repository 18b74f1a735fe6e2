"""The rules. Each module is one: its name is the slug, its docstring its documentation (see ``registry``)."""
