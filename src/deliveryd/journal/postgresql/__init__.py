"""The journal in a PostgreSQL database: one connection in one thread, sets of rows for each statement."""
