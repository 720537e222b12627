"""The command line: one room for each purpose, in which a command's options lie beside what it does.

`app` is the table of all commands; `common` is what several rooms use. May import any room; only the
entry point imports it.
"""
