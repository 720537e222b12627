"""The remote service's interface: its values and one client for all of its endpoints.

Imports http, network and runtime. What is done with the answers belongs to delivery and inspection.
"""
