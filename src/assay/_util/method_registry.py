"""The registry of methods, which have options that a user may set."""

from __future__ import annotations

from typing import Any, TypeVar

from assay._util.registry import Registry, changed, chosen

T = TypeVar("T")


class MethodRegistry(Registry[T]):
    """Methods by name: one file of a package each, which defines `METHOD`.

    Args:
        kind: one of `assay._util.registry.HOMES`.
        base: the class from which methods derive.
        package: where the files are.
    """

    def __init__(self, kind: str, base: type[T], package: str) -> None:
        wanted = f"an object of a class derived from {base.__module__}.{base.__qualname__}"
        super().__init__(kind, of=base, wanted=wanted, package=package, attribute="METHOD")

    def available(self) -> dict[str, T]:
        """Every method by name."""
        return dict(self)

    def with_options(self, name: str, **options: Any) -> T:
        """The method of this name with these options. Texts are read as numbers where an option is a number.

        Raises:
            ConfigError: there is no such method, or it does not take an option.
        """
        return chosen(self, name, options)

    def options(self, method: T) -> dict[str, Any]:
        """The options of a method that differ from their defaults: with them `with_options` gives the method again."""
        return changed(self, method, method.name)  # type: ignore[attr-defined]
