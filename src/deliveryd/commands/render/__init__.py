"""`deliveryd render`: what channels would send for a message. Sends nothing.

Imports common, worker and the rooms below.
"""
