"""The process: what puts the worker together, its start, health, signals and end.

Imports config, delivery, admin, control and receipts. The way of a message belongs to delivery.
"""
