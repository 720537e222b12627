"""What workers store: the journal, who shares it, the caches on disk. Its commands show, examine and move it.

Imports common and the rooms below. Single messages belong to messages and orders.
"""
