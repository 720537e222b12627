"""Moves a journal from SQLite to PostgreSQL, and back."""
