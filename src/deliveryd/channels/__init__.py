"""Channel adapters: what turns a rendered message into a provider's request."""
