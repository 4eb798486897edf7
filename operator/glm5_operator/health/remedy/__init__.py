"""What is done about sick cards, as a state machine. docs/health.md has its table. Pure."""
