"""What every journal must do: cases for each part of a message's life, which `test_conformance.py` runs.

Imports `deliveryd.journal` and what lies below. `samples.py` is also for other tests that record messages.
"""
