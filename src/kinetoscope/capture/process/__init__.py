"""The process that is recorded: how it is started, what is put into it, and how its end is noticed."""
