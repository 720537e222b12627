"""The cases of JournalConformance, a module for each part of a message's life.

Imports journal and what lies below. Authors subclass `deliveryd.testing.journals.JournalConformance` instead.
"""
