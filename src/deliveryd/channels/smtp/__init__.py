"""Sends e-mails by SMTP."""
