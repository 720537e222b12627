"""The whole worker against a world that fails in every way, in virtual time, watched by an oracle."""
