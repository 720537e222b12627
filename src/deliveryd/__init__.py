"""deliveryd: the issuer-side worker for a remote queue of outbound customer messages."""

__version__ = "0.1.0"
