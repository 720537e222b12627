"""Building blocks without domain logic: waiting, threads, disk cache, breaker, back-off, files and rights.

Imports telemetry and the model. Anything specific to the flow of messages belongs to delivery.
"""
