"""The operators' desk: orders about what lies aside, carried out by whoever has the journal."""
