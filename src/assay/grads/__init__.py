"""Per-record gradients at the price of plain training: the engine, a rule per layer type, and the clipping rules."""
