"""What check, explain, render and customers look at; it sends nothing.

Imports worker, config and what lies below. How it is printed belongs to cli.
"""
