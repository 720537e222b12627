"""Operators' orders: the client, the server in the worker, and the protocol between them.

Imports journal and runtime. What an order does to a message belongs to the journal.
"""
