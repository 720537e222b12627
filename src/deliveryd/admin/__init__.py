"""The administrative pages: health, readiness, metrics, status.

Imports metrics and http. Changes nothing: what operators order belongs to control.
"""
