"""Statistics of timings: pure functions on plain numbers, which assume nothing about their distribution."""
