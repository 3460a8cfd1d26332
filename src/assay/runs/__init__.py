"""A run on disk: its directory, its checkpoint, its record and its privacy statement."""
