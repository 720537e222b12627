"""Schemes by which providers sign their reports: one module for each.

A module is loaded only if the configuration names its scheme, since libraries load slowly. It holds a class
`Scheme` that is made from the options of `channels.signature_options`.
"""
