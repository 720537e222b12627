"""Adapters, presets and providers: describe them, try answers, receipts and cases, send a test message.

Imports common, worker and the rooms below.
"""
