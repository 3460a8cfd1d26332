"""Where random numbers come from: streams by purpose and step, and normal numbers."""
