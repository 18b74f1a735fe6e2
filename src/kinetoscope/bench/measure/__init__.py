"""Timing honestly: harness, timers, results."""
