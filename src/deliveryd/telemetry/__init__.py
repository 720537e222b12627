"""What a worker reports of itself: log events and layouts, systemd's journal, the status overview.

Imports errors alone. Counters belong to metrics, spans to otlp.
"""
