"""Property tests draw the same examples everywhere, and have no deadline: machines differ."""

from hypothesis import settings

settings.register_profile("assay", deadline=None, derandomize=True)
settings.load_profile("assay")
