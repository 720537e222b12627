"""A stand-in for the service and its providers on real sockets, for the demo and the tests.

Imports no other room, so that it shares no mistake with them; only commands.sandbox opens it.
"""
