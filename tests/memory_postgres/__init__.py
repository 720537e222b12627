"""A stand-in for a PostgreSQL server, in memory: it reads the journal's own SQL, and keeps its rules.

`standing_in` makes `psycopg.connect` lead to it for URLs whose host is `/memory`; all others lead where they
always do. A statement that it doesn't understand raises SyntaxError with its text.
"""

from memory_postgres.connections import SERVER, Connection, new_database, standing_in

__all__ = ["SERVER", "Connection", "new_database", "standing_in"]
