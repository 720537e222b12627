"""What commands of several rooms use: options, output, errors, the configuration as a command reads it.

Imports the rooms below. What one room alone uses belongs there.
"""
