"""What an operator rules about messages: when they may be sent."""
