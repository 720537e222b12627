"""`deliveryd customers`: the customer data that the service holds, as tables or JSON.

Imports common and the rooms below.
"""
