"""Per-record gradients: the engine, a rule for each layer type, clipping, and the proof on the first batch."""
