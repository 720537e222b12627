"""deliveryd without a service: sandbox and demo. Only this room opens the sandbox.

Imports run, common, worker and the rooms below.
"""
