"""Shared by configuration tables: reading the file, types of values, the look-up of plug-ins.

Imports runtime and the errors. Tables belong to config and to the parts that they configure.
"""
