"""Days of load on a journal in PostgreSQL that deletes them, by a clock that its caller moves."""
