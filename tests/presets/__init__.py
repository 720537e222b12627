"""Cases of the presets: what a provider must be sent, answers and reports, as data (README.md)."""
