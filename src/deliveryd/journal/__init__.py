"""The journal: what happened to every message, durably."""
