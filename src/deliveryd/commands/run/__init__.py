"""The worker's process: run and reload.

Imports common, worker and the rooms below. What happens in the process belongs to worker.
"""
