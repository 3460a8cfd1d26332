"""Which data sets are neighbours."""

from __future__ import annotations

from enum import StrEnum


class Adjacency(StrEnum):
    """Which data sets are neighbours, i.e. what one record's presence means."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"
