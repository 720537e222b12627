"""HTTP, at the edge: the one place that builds clients, and the wires below them."""
