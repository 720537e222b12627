"""Names, connections and deadlines, independent of protocols.

Imports nothing but the errors. Protocols belong to http and channels.
"""
