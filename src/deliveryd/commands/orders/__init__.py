"""Operators' orders, and the lists of what they are about: pause, in-doubt, dead, failed, stopped and more.

Imports messages, common and the rooms below. What an order does belongs to control and journal.
"""
