"""Schemes by which providers sign their reports.

A module is loaded only if the configuration names a scheme of it, since libraries load slowly. A scheme is
made from the options of `channels.signature_schemes`; `verification` has the table of all.
"""
