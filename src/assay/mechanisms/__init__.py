"""Mechanisms: they turn a bounded sum into a released one and state what that cost."""
