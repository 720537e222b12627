"""`deliveryd lint`: one module for each family of rules, pure functions from settings to findings.

Imports render, common and the rooms below. `lint` applies all families.
"""
