"""Things that are chosen by name: methods, samplers, clipping rules, accountants, data sets, attacks, report sections.

Each kind has a home: a package whose files define one such thing each (`METHOD = ...`, `SAMPLER = ...`). A registry
imports every file there. If a thing has the name of its file (`fashion-mnist` in `fashion_mnist.py`), no other file is
imported for it. You add a thing from outside by `register`, or by an entry point of your package in the group
`assay.<kind>`:

    registry.register("clip", MyRule)

    [project.entry-points."assay.clip"]
    mine = "my_package.rules:MyRule"

A name that is taken is refused: names decide ε, and no package may change the meaning of one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, Generic, TypeVar

from assay._util import spec
from assay.errors import ConfigError, one_of

T = TypeVar("T")

HOMES: Mapping[str, tuple[str, str]] = {
    "accountant": ("assay.accounting.events", "ACCOUNTANTS"),
    "attack": ("assay.attacks", "ATTACKS"),
    "clip": ("assay.gradients.clip_rules", "RULES"),
    "data": ("assay.data.catalog", "DATASETS"),
    "denoise": ("assay.methods.denoise", "KINDS"),
    "encode": ("assay.methods.encode", "KINDS"),
    "federated_method": ("assay.federated.methods", "METHODS"),
    "logger": ("assay.loggers", "LOGGERS"),
    "method": ("assay.methods", "METHODS"),
    "noise_schedule": ("assay.accounting.schedules", "KINDS"),
    "report_section": ("assay.report.sections", "SECTIONS"),
    "sampler": ("assay.data.samplers", "SAMPLERS"),
    "vectors": ("assay.data.catalog", "VECTORS"),
}
"""Each kind, with the module and the name of its registry."""


def register(kind: str, thing: T) -> T:
    """Add a thing of your own, for this process.

    Args:
        kind: one of `HOMES`.
        thing: what a file of that kind's package would define. It is chosen by its `name`.

    Returns:
        `thing`, so that the call can be a decorator: `@functools.partial(register, "clip")`.

    Raises:
        ConfigError: the kind is not known, the name is taken, or the thing is not of the kind.
    """
    registry_of(kind).register(thing)
    return thing


def registry_of(kind: str) -> Registry[Any]:
    """All things of a kind by name.

    Raises:
        ConfigError: the kind is not known.
    """
    if kind not in HOMES:
        raise ConfigError("kind", kind, one_of(kind, HOMES))
    module, name = HOMES[kind]
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


class Registry(Mapping[str, T], Generic[T]):
    """The things of one kind by name: from a package's files, from entry points, and from `register`.

    Args:
        kind: one of `HOMES`.
        of: the type of the things, or with `classes` their base class. A text is the name of a member that they have.
        wanted: what that means, in words.
        classes: whether the things are classes, and not objects.
        distinct: a field that holds a class, which no two things may share.
        package: where the files are; None if there are none.
        attribute: the name of the thing in a file, or of a tuple of things.
        known: things that need no search.
    """

    def __init__(
        self,
        kind: str,
        *,
        of: type[Any] | str,
        wanted: str,
        classes: bool = False,
        distinct: str = "",
        package: str | None = None,
        attribute: str = "",
        known: tuple[T, ...] = (),
    ) -> None:
        self._kind, self._of, self._wanted = kind, of, wanted
        self._classes, self._distinct = classes, distinct
        self._package, self._attribute = package, attribute
        self._things: dict[str, T] = {}
        self._searched = False
        self._known = [self._add(thing) for thing in known]

    def register(self, thing: T) -> None:
        """Add a thing.

        Raises:
            ConfigError: the name is taken, or the thing is not of the kind.
        """
        self._search()
        self._add(thing)

    def choose(self, field: str, name: str) -> T:
        """The thing of this name.

        Raises:
            ConfigError: there is none. `field` is the error's name for the setting.
        """
        found = self.get(name)
        if found is None:
            raise ConfigError(field, name, one_of(name, self))
        return found

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            self._look_in_file(name)
        if name not in self._things:
            self._search()
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._search()
        return iter(self._things)

    def __len__(self) -> int:
        self._search()
        return len(self._things)

    def _add(self, thing: T) -> str:
        name = getattr(thing, "name", None)
        if not (isinstance(name, str) and name and self._fits(thing)):
            raise ConfigError(self._kind, thing, f"{self._wanted}, with a name")
        self._check_distinct(thing)
        if self._things.get(name, thing) is not thing:
            raise ConfigError(f"{self._kind} name", name, "a name that is not taken: " + ", ".join(self._things))
        self._things[name] = thing
        return name

    def _fits(self, thing: object) -> bool:
        if inspect.isclass(thing) != self._classes:
            return False
        if isinstance(self._of, str):
            return hasattr(thing, self._of)
        return issubclass(thing, self._of) if inspect.isclass(thing) else isinstance(thing, self._of)

    def _check_distinct(self, thing: T) -> None:
        own = getattr(thing, self._distinct) if self._distinct else None
        for name, other in self._things.items() if self._distinct else ():
            if getattr(other, self._distinct) is own and other is not thing:
                raise ConfigError(f"{self._kind} {self._distinct}", own.__name__, f"a class of its own: {name} has it")

    def _look_in_file(self, name: str) -> None:
        """Import the file that this name suggests, if there is one."""
        if isinstance(name, str) and self._package is not None and not self._searched:
            module = f"{self._package}.{name.replace('-', '_')}"
            if module in _modules(self._package):
                self._add_from(module)

    def _search(self) -> None:
        """Import the files of the package and the entry points, once."""
        if self._searched:
            return
        self._searched = True
        try:
            names = list(self._known)
            for module in () if self._package is None else _modules(self._package):
                names += self._add_from(module)
            names += [self._add(point.load()) for point in _entry_points().select(group=f"assay.{self._kind}")]
            self._things = {name: self._things[name] for name in names}  # in one order, whatever was asked for first
        except BaseException:
            # A file that cannot be imported must be an error each time, not an empty registry the second time.
            self._searched = False
            raise

    def _add_from(self, module: str) -> list[str]:
        found = getattr(importlib.import_module(module), self._attribute, ())
        return [self._add(thing) for thing in (found if isinstance(found, tuple) else (found,))]


class Parts(Registry[type[T]]):
    """Classes whose objects are given as texts, by the name of the class and its settings (`assay._util.spec`).

    Args:
        kind: one of `HOMES`, and the setting that a text belongs to.
        of: a member that the classes have.
        wanted: what that means, in words.
        package: where the files are.
        attribute: the name of the class in a file.
    """

    def __init__(self, kind: str, *, of: str, wanted: str, package: str, attribute: str) -> None:
        super().__init__(kind, of=of, classes=True, wanted=wanted, package=package, attribute=attribute)

    def parse(self, text: str) -> T:
        """The object that a text such as `sign:tau=0.01` names.

        Raises:
            ConfigError: there is none, or it does not take these settings.
        """
        return spec.parse(self._kind, text, self)

    def parse_all(self, texts: Sequence[str]) -> tuple[T, ...]:
        """Several of them, in the order in which they are applied."""
        return tuple(map(self.parse, texts))

    def describe(self, thing: T) -> str:
        """The text that `parse` turns into this object."""
        return spec.describe(thing, self)


def _modules(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return sorted(f"{package}.{info.name}" for info in pkgutil.iter_modules(path))


@functools.cache
def _entry_points() -> Any:  # its type differs between versions of Python; all have `select`
    return metadata.entry_points()


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
        self._base = base

    def available(self) -> dict[str, T]:
        """Every method by name."""
        return dict(self)

    def with_options(self, name: str, **options: Any) -> T:
        """The method of this name with these options. Texts are read as numbers where an option is a number.

        Raises:
            ConfigError: there is no such method, or it does not take an option.
        """
        method: Any = self.choose("method", name)
        settable = type(method).OPTIONS
        if options.get("variant", "sound") != "sound" and "variant" not in settable:
            raise ConfigError(
                "variant", options["variant"], f"sound for {name}: its published form is sound, so there is only one"
            )
        given = {key: value for key, value in options.items() if key != "variant" or "variant" in settable}
        made: T = replace(method, **spec.converted(f"{name} option", type(method), given))
        return made

    def method_of(self, given: T | str) -> T:
        """The method that somebody gave, itself or by its name.

        Raises:
            ConfigError: It is neither, or there is no such method.
        """
        if isinstance(given, self._base):
            return given
        if isinstance(given, str):
            return self.with_options(given)
        raise ConfigError("method", given, f"a method, or the name of one: {', '.join(self)}")

    def options(self, method: T) -> dict[str, Any]:
        """The options of a method that differ from their defaults: with them `with_options` gives the method again."""
        plain = self[method.name]  # type: ignore[attr-defined]
        settable: tuple[str, ...] = type(method).OPTIONS  # type: ignore[attr-defined]
        return {one: getattr(method, one) for one in settable if getattr(method, one) != getattr(plain, one)}
