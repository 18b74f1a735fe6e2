"""Kineto / Chrome JSON to tables."""
