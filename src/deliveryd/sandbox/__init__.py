"""A stand-in for the remote service and its providers on real sockets, for the demo and for the tests."""
