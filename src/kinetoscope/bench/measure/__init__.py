"""Timing honestly: harness, timers, statistics, results."""
