"""HTTP: clients and the wires below them, the server and its sockets, JSON Pointer.

Imports network and runtime. Requests and responses belong to the rooms that exchange them.
"""
