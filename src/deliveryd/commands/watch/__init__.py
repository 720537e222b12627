"""A running worker from outside: status, top, tail, health.

Imports common and the rooms below. Changes nothing.
"""
