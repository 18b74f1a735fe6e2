"""Where steps begin, when their time has settled, and when all ranks start."""
