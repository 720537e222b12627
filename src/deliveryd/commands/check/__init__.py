"""`deliveryd check`: the checks, what they find, and the warnings. Sends no messages.

Imports common, worker and the rooms below.
"""
