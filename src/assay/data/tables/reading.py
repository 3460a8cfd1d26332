"""CSV and Parquet files as pyarrow tables. A CSV file is read as texts: no type is inferred from its values.

Errors name the file, the row and the column. Rows are counted as a spreadsheet counts them: in a CSV file the header is
row 1; in Parquet the first record is row 1. Such errors quote private values: they are for the holder of the records.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.data.tables.names import PARQUET, SUFFIXES
from assay.data.tables.schema import listed
from assay.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

_NO_NAME = re.compile(r"__index_level_\d+__")  # pandas' name for an index that has none
_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_MARKS = {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    b"\x1f\x8b": "gzip's format",
    b"PK\x03\x04": "the format of zip or Excel",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of a file, and what to call it and them in errors.

    `first_row` is the number that people know the first row by.
    """

    name: str
    rows: pa.Table
    first_row: int

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self.rows.column_names)

    def column(self, name: str) -> pa.Array:
        """One of them, in one piece."""
        return self.rows.column(name).combine_chunks()

    def wrong(self, column: str, at: int, value: object, accepted: str) -> DataError:
        """The error about one value."""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        return DataError(
            f"{self.name}, row {self.first_row + at}, column {column!r}: {shown} is not accepted: {accepted}"
        )


def arrow() -> Any:
    """pyarrow, with its modules, which take time to import."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet

    return pyarrow


def read_table(path: Path, *, delimiter: str | None = None) -> Table:
    """The rows of a CSV or Parquet file.

    Args:
        path: The file.
        delimiter: Between values of a CSV file; None takes what its row of names shows (`delimiter_of`).

    Returns:
        The table; columns of a CSV file are texts.

    Raises:
        ConfigError: There is no such file.
        DataError: It cannot be read; the message names file, row and column.
    """
    names = header(path, delimiter=delimiter)
    pyarrow = arrow()
    if path.suffix.lower() in PARQUET:
        try:
            found = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowException as error:
            raise DataError(f"{path} cannot be read as Parquet: {_line(error)}") from error
        table = Table(name=str(path), rows=found, first_row=1)
    else:
        _check_utf8(path)
        table = Table(name=str(path), rows=_csv(path, names, delimiter_of(path, delimiter)), first_row=2)
    if len(table) == 0:
        raise DataError(f"{path} has column names and no rows; at least 5 rows are required")
    return table


def in_memory(rows: Any, field: str) -> Table:
    """Rows in memory as a table: a DataFrame, a pyarrow table, a `datasets.Dataset`, dicts, or a dict of columns.

    Args:
        rows: The rows. A DataFrame's index counts as a column if it has a name.
        field: What an error calls them.

    Raises:
        ConfigError: They are nothing of these.
        DataError: There are none, or they do not make a table.
    """
    pyarrow = arrow()
    found: Any
    try:
        if hasattr(rows, "num_rows") and hasattr(rows, "column_names") and hasattr(rows, "combine_chunks"):
            found = rows
        elif hasattr(rows, "with_format"):  # a datasets.Dataset
            found = rows.with_format("arrow")[:]
        elif hasattr(rows, "__arrow_c_stream__"):
            found = pyarrow.table(rows)
            found = found.select([name for name in found.column_names if not _NO_NAME.fullmatch(name)])
        elif isinstance(rows, Mapping):
            found = pyarrow.table({str(name): _typed(values) for name, values in rows.items()})
        elif isinstance(rows, Sequence) and rows and all(isinstance(row, Mapping) for row in rows):
            names = dict.fromkeys(str(name) for row in rows for name in row)
            found = pyarrow.table({name: _typed([row.get(name) for row in rows]) for name in names})
        else:
            accepted = "a path, a DataFrame, a pyarrow.Table, a datasets.Dataset or a list of dicts, not empty"
            raise ConfigError(field, type(rows).__name__, accepted)
    except ConfigError:
        raise
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the rows cannot be read as a table: {error}") from error
    if found.num_rows == 0:
        raise DataError("the table has no rows; at least 1 is required")
    name = getattr(rows, "builder_name", None) or "table"
    return Table(name=str(name), rows=found, first_row=1)


def _typed(values: Any) -> Any:
    """A column; one whose values are of several types is read as texts, as in a CSV file."""
    listed = list(values)
    kinds = {type(value) for value in listed if value is not None}
    mixed = str in kinds and len(kinds) > 1
    return [None if value is None else str(value) for value in listed] if mixed else listed


def header(path: Path, *, delimiter: str | None = None) -> list[str]:
    """The names of a file's columns; no value of a row is looked at.

    Raises:
        ConfigError: There is no such file.
        DataError: It has no usable names.
    """
    if not path.is_file():
        hint = nearest(path.name, (one.name for one in path.parent.glob("*")))
        raise ConfigError("data", str(path), f"{hint}the path of an existing file ({', '.join(SUFFIXES)})")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a row of column names and at least 5 rows of values are required")
    if path.suffix.lower() in PARQUET:
        names = list(arrow_schema(path).names)
    else:
        names = _csv_header(path, delimiter_of(path, delimiter))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{path}, row 1: column {twice[0]!r} is there {Counter(names)[twice[0]]} times; names must differ from "
            "each other"
        )
    return names


def arrow_schema(path: Path) -> pa.Schema:
    """Names and types of the columns of a Parquet file: what its writer declared, not what its rows hold.

    Raises:
        DataError: It is not a Parquet file.
    """
    pyarrow = arrow()
    try:
        return pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is no Parquet file, or was cut off: {_line(error)}") from error


def delimiter_of(path: Path, chosen: str | None = None) -> str:
    """What stands between the values of a CSV file, by its row of names; no value of a row is looked at.

    Args:
        path: The file.
        chosen: What a schema says, which is taken as it is.

    Returns:
        A tab for a .tsv file; otherwise the comma, semicolon, tab or vertical bar that makes the most names of the
        first row. Where two make as many, the comma comes first.
    """
    if chosen is not None:
        return chosen
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(_DELIMITERS, key=lambda one: len(_first_row(path, one)))


def _first_row(path: Path, delimiter: str) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        try:
            return next((row for row in csv.reader(text, delimiter=delimiter) if row), [])
        except csv.Error:  # whoever reads the names next says what is wrong with them
            return []


def _csv_header(path: Path, delimiter: str) -> list[str]:
    with path.open("rb") as file:
        start = file.read(4)
    if (kind := next((kind for mark, kind in _MARKS.items() if start.startswith(mark)), None)) is not None:
        raise DataError(f"{path} is in {kind}; save it as CSV in UTF-8")
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            rows = csv.reader(text, delimiter=delimiter)
            names = [name.strip() for name in next((row for row in rows if row), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        _check_utf8(path)
        raise DataError(f"{path}, row 1 does not hold column names: {error}") from error
    if not any(names):
        raise DataError(f"{path}, row 1 has no column names; the first row must name the columns")
    if len(names) == 1:
        for other, words in _DELIMITERS.items():
            if other in names[0] and other != delimiter:
                said, written = _DELIMITERS.get(delimiter, repr(delimiter)), other.replace("\t", "\\t")
                raise DataError(
                    f"{path}, row 1 is one single column {names[0][:60]!r}: values seem to be separated by {words}, "
                    f'not by {said}. Say delimiter = "{written}" in section [table] of the schema'
                )
    if names[0].lower().startswith("sep="):
        raise DataError(f"{path}, row 1 is {names[0] + delimiter!r}, which only Excel reads: remove this row")
    for at, name in enumerate(names, 1):
        if not name:
            raise DataError(
                f"{path}, row 1: column {at} has no name; name every column, or remove the delimiter at its end"
            )
        if _is_number(name):
            raise DataError(
                f"{path}, row 1: column {at} is called {name!r}, which is a value: the first row must name the columns"
            )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_one_line(path: Path) -> bool:
    with path.open("rb") as file:
        return len(file.read(2**20).splitlines()) < 2


def _csv(path: Path, names: list[str], delimiter: str) -> pa.Table:
    pyarrow = arrow()
    wrong: list[Any] = []

    def refuse(row: Any) -> str:
        wrong.append(row)
        return "error"

    try:
        return pyarrow.csv.read_csv(
            path,
            # one thread: with several pyarrow does not know the number of a row
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names, skip_rows_after_names=1),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False, check_utf8=True
            ),
        )
    except pyarrow.ArrowException as error:
        if not wrong and _is_one_line(path):
            raise DataError(f"{path} is one single line; column names and rows of values are required") from None
        if not wrong:
            raise DataError(f"{path} cannot be read as CSV: {_line(error)}") from error
        row = wrong[0]
        text = row.text if len(row.text) <= 60 else row.text[:57] + "..."
        hint = ", and every quotation mark closed" if '"' in row.text else ""
        where = "" if row.number is None else f", row {row.number}"
        raise DataError(
            f"{path}{where} has {row.actual_columns} values ({text!r}); {row.expected_columns} are required, one for "
            f"each of the columns {listed(names)}{hint}"
        ) from error


def _check_utf8(path: Path) -> None:
    """Refuse what is not UTF-8, by the row of the first wrong byte."""
    decoder, row = codecs.getincrementaldecoder("utf-8")(), 1
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            try:
                if "\0" in decoder.decode(block):
                    raise DataError(f"{path} holds a zero byte: it is not a text file; save it as CSV in UTF-8")
            except UnicodeDecodeError as error:
                row += block[: error.start].count(b"\n")
                raise DataError(
                    f"{path}, row {row} is not UTF-8 (byte 0x{error.object[error.start]:02x}); save the file as CSV in "
                    "UTF-8"
                ) from None
            row += block.count(b"\n")


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
