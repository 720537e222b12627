"""Names, connections and deadlines, whatever is spoken over them.

Imports nothing but the errors. Protocols belong to http and channels.
"""
