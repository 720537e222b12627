"""Real crashes: the worker as a process that is killed at every boundary, at any syscall, at any moment."""
