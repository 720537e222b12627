"""The issuer's own customer directory (interface 2.6): customers' names, languages and addresses.

Imports options, http and the service's number texts. The service's customer data belongs to service.
"""
