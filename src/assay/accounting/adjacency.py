"""Which data sets are neighbours, and the units of privacy that are not the name of a column."""

from __future__ import annotations

from enum import StrEnum

RECORD, CLIENT = "record", "client"


class Adjacency(StrEnum):
    """Which data sets are neighbours: one record is added or removed, or one record is replaced.

    >>> Adjacency("replace-one") is Adjacency.REPLACE_ONE
    True
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"
