"""Messages in the journal: explain, find, overdue. Changes nothing.

Imports common and the rooms below. What changes a message belongs to orders.
"""
