"""Placeholders, greeting, language and escaping: pure functions.

Imports the model and the errors. Does no I/O.
"""
