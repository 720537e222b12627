"""What follows from what is known: pure decisions."""
