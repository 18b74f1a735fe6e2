"""Answers for agents: few tokens, with units, a fingerprint, and what to record where there is no answer."""
