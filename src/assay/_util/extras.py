"""The packages that only some need, by the names of the extras in pyproject.toml."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

_EXTRA = re.compile(r"""^(?P<package>[^;]+);.*extra == ['"](?P<extra>[^'"]+)['"]""")


def command(extra: str) -> str:
    """What to type to install the packages of an extra.

    The packages are named one by one. The extra's own name would lead pip to a registry, where Assay is not, or to
    whoever has taken its name there.

    Example:
        >>> command("datasets")
        "pip install 'datasets>=3.2'"
    """
    try:
        said = requires("assay-dp") or []
    except PackageNotFoundError:  # the source is on the path and was not installed
        said = []
    found = (_EXTRA.match(one) for one in said)
    packages = [f"'{one['package'].strip()}'" for one in found if one is not None and one["extra"] == extra]
    return f"pip install {' '.join(packages or [f'.[{extra}]'])}"
