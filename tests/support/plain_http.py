"""For HTTP clients of the tests that speak without TLS."""

from __future__ import annotations

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. A client without it reads all authorities when it is made, which takes 30 ms."""
