"""For HTTP clients of the tests that speak without TLS."""

from __future__ import annotations

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It has no authorities. A client without it reads all of the system when it is made, which takes 30 ms."""
