"""OpenTelemetry: spans of messages and the metrics, posted to a collector (optional extra `otlp`).

Imports config, admin's metric families, delivery's watchers, channels, http and telemetry. Nothing here is
loaded unless `otlp.endpoint` is configured.
"""
