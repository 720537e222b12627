"""Days of load on a journal in PostgreSQL that forgets them, by a clock that its caller moves."""
