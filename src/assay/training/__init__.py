"""Private training: the step, the one loop, and the settings that do not decide ε."""
