"""The rules of `deliveryd lint`: one module for each family, pure functions from settings to findings.

Imports the rooms below. `linting` applies all families; printing belongs to cli.
"""
