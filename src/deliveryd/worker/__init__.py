"""The worker process: wiring, start, health, signals and shutdown.

Imports config, delivery, admin, control and receipts. The way of a message belongs to delivery.
"""
