"""Channel adapters: they turn a rendered message into a provider's request, its answer into an outcome.

Imports options, http, network and the model. When and how often a message is tried belongs to delivery.
"""
