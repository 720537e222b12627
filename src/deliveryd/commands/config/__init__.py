"""`deliveryd config`: the configuration in force, a new one, an example.

Imports check, common and the rooms below. The models of the file belong to config.py.
"""
