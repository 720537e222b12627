"""The webpush adapter: encrypted messages to browsers, over their push services (RFC 8030)."""
