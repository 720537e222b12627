"""From content templates to the text that is sent: pure functions, without I/O."""
