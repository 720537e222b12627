"""Building blocks without domain logic: wake-ups, threads, disk cache, breaker, back-off, files and rights.

Imports telemetry and the model. Anything specific to the flow of messages belongs to delivery.
"""
