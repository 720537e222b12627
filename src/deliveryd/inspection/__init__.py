"""The logic behind check, explain, render and customers. Sends no messages.

Imports worker, config and the rooms below. Printing belongs to cli.
"""
