"""Receipts: what providers report of messages that they accepted earlier."""
