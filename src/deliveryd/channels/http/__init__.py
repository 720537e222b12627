"""Sends by HTTP requests that the configuration describes."""
