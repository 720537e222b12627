"""What any program like this needs: waiting, threads, the disk cache, the breaker, files and rights.

Imports telemetry and the model. What knows a message's way belongs to delivery.
"""
