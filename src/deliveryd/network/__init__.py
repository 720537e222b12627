"""Names, connections and deadlines, whatever is spoken over them."""
