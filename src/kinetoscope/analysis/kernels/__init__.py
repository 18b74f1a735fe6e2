"""Device work: what sort each kernel is, and the one table that everything else starts from."""
