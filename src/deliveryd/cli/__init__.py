"""The command line: one file for each command; no logic of its own."""
