"""The journal: what happened to every message, durably.

Imports runtime, telemetry and the model. When something is recorded belongs to delivery.
"""
