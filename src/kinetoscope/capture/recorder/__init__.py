"""What is recorded when: the phases of a recording, and the profilers behind them."""
