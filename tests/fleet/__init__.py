"""Several real workers on one real PostgreSQL, under load, while faults happen to them and to it."""
