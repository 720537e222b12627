"""Placeholders, greeting, language, escaping and parts of an SMS: pure functions.

Imports the model and the errors. Does no I/O.
"""
