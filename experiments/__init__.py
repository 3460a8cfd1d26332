"""Reproductions of the papers' tables: a TOML a table, what was measured in a JSON beside it. `python -m experiments --help`"""
