"""Providers' reports: verify, read, record and match.

Imports channels, journal and metrics. What a receipt does to a message belongs to the journal.
"""
