"""Two versions of a program on one machine, in turn, until the difference is known or the budget spent."""
