"""Presets: descriptions of HTTP providers as data, and what reads them."""
