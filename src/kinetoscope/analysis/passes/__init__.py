"""The passes of one recording and the steps timed without any, joined: the program as it runs."""
