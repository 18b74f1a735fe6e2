"""The phases of a recording: what is recorded when, and the profilers behind them."""
