"""Readers of the standard formats, for bytes that were verified already. Nothing here unpickles anything."""
