"""The journal's statements, each once, and what is read and written by them."""
