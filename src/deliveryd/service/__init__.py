"""The remote service's interface: its values and one client for all of its endpoints.

Imports http, network and runtime. Using the answers belongs to delivery and commands.
"""
