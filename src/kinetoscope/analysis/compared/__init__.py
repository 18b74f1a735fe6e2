"""Parts of many ranks, each mapped from one trace, and what they say of one another."""
