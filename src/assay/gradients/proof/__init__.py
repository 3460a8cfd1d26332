"""What the engine proves on the user's own model."""
