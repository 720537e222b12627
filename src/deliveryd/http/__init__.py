"""HTTP, at the edge: clients and the wires below them, the server and its sockets, JSON Pointer.

Imports network and runtime. What is said over it belongs to the rooms that say it.
"""
