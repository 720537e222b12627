"""The remote service: what goes over its wire, and one client for all of its endpoints."""
