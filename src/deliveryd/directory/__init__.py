"""The issuer's own customer directory (interface 2.6): where names, languages and addresses come from.

Imports options, http and the service's number texts. The service's customer data belongs to service.
"""
