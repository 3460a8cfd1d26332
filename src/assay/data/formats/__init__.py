"""Readers of the standard formats, for verified bytes. Nothing here unpickles anything."""
