"""Composes e-mails from rendered messages, whichever adapter sends them."""
