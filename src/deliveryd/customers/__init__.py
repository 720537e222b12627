"""The issuer's own customer directory (interface 2.6)."""
