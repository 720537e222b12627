"""The command line: one file for each command.

May import any room, and only the entry point imports it. Logic of its own doesn't belong here.
"""
