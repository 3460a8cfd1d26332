"""Where random numbers come from: streams by purpose and step, their generators, and normal numbers."""
