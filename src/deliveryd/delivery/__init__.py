"""The line: the life of a message, from the queue to its last event.

Imports metrics and what lies below. Uses no configuration file, no process and no command.
"""
