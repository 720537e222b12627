"""Channel adapters: they send rendered messages to providers, and map the answers to verdicts.

Imports options, http, network and the model. When and how often a message is tried belongs to delivery.
"""
