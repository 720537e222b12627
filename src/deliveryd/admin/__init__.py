"""The administrative side: health, readiness, metrics and status, and the server that answers for them."""
