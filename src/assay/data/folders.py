"""A folder of pictures as a data set: a folder for each class, with .png, .jpg, .jpeg, .bmp, .webp or .tif files in it.

    folder/healthy/*.png            or, with a test part:   folder/train/healthy/*.png
    folder/ill/*.jpg                                        folder/test/healthy/*.png

The names of the classes, the size and the number of channels are public: a person declares the size, and classes are
folders. Every picture is scaled to the size and its pixels to [-1, 1], by itself; no statistic of the pictures is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from assay.data.apart import check_parts
from assay.data.bundle import DataBundle
from assay.data.split import TEST_SHARE, drawn_units, unit_keys
from assay.data.task import BINARY, MULTICLASS, Task
from assay.errors import ConfigError, DataError, check_fields

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB"}
_MOST_PIXELS = 4096 * 4096
_NOTES = (
    "Every picture was scaled to {size} × {size} pixels, {channels} for each, from -1 to 1, by itself; no statistic "
    "of the pictures is used. "
    "The names of the classes are those of the folders, and taken as public."
)


@dataclass(frozen=True, kw_only=True)
class PictureSchema:
    """How pictures are prepared: their size in pixels, and grey (1 channel) or colour (3)."""

    classes: tuple[str, ...]
    size: int = 32
    channels: int = 3

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 4096:
            raise ConfigError("size", self.size, "the side of a picture in pixels, a whole number from 1 to 4096")
        if self.channels not in _MODES:
            raise ConfigError("channels", self.channels, "1 for grey pictures or 3 for colour")
        if len(self.classes) < 2:
            raise ConfigError("classes", list(self.classes), "at least two, a folder for each")

    def to_json(self) -> dict[str, Any]:
        """As a run holds it."""
        return {"pictures": {"classes": list(self.classes), "size": self.size, "channels": self.channels}}

    @property
    def task(self) -> Task:
        """What is predicted."""
        return Task(kind=BINARY if len(self.classes) == 2 else MULTICLASS, names=self.classes)


def how_prepared(schema: object) -> dict[str, int] | None:
    """Size and channels by the section [pictures] of a schema: a .toml file, or what a run holds.

    Args:
        schema: The path of a file, or a mapping.

    Returns:
        What `folder` takes; None where the schema is about a table.

    Raises:
        ConfigError: The section says something else.
    """
    if isinstance(schema, str | Path):
        try:
            schema = tomllib.loads(Path(schema).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("schema", str(schema), f"a readable file in TOML; {error}") from None
    if not isinstance(schema, Mapping) or "pictures" not in schema:
        return None
    said = {key: value for key, value in schema["pictures"].items() if key != "classes"}
    check_fields("schema.pictures", said, ("size", "channels"))
    return said


def picture(image: Any, size: int, channels: int) -> Tensor:
    """One picture, a `PIL.Image`, as a float32 tensor of shape (channels, size, size) from -1 to 1.

    The shorter side is cropped to a square in the middle, then scaled with antialiasing. The orientation that a camera
    noted (EXIF) is followed.

    Args:
        image: The picture.
        size: The side of the result in pixels.
        channels: 1 for grey, 3 for colour.
    """
    from PIL import Image, ImageOps

    image.draft(_MODES[channels], (size, size))  # a JPEG is decoded at a smaller scale, which is much faster
    turned = ImageOps.exif_transpose(image)
    fitted = ImageOps.fit(turned.convert(_MODES[channels]), (size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(fitted, dtype=np.uint8)).reshape(size, size, channels).permute(2, 0, 1)
    return pixels.float().div_(127.5).sub_(1.0).contiguous()


def read_picture(path: Path, size: int, channels: int) -> Tensor:
    """The picture of a file, as `picture` prepares it.

    Raises:
        DataError: It is not a picture, was cut off, or has too many pixels.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise DataError(f"{path} has {image.width} × {image.height} pixels; at most {_MOST_PIXELS:,} are read")
            return picture(image, size, channels)
    except DataError:
        raise
    except Exception as error:  # damage shows in many ways
        raise DataError(f"{path} cannot be read as a picture ({', '.join(SUFFIXES)}): {error}") from error


@dataclass(frozen=True)
class Pictures(Dataset[tuple[Tensor, int]]):
    """Picture files as a map-style data set of (picture, class), each read when it is asked for.

    For `assay.fit` with `num_workers`: worker processes decode the pictures while the model trains.
    """

    files: Sequence[Path]
    labels: Sequence[int]
    schema: PictureSchema
    transform: Callable[[Tensor], Tensor] | None = field(default=None)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        found = read_picture(self.files[index], self.schema.size, self.schema.channels)
        return (found if self.transform is None else self.transform(found)), self.labels[index]


def pictures(path: Path | str, *, size: int = 32, channels: int = 3) -> tuple[Pictures, Pictures]:
    """The training and the test part of a folder, read picture by picture as they are asked for.

    Args:
        path: A folder with a folder for each class, or with folders `train` and `test` of such.
        size: The side of a picture in pixels.
        channels: 1 for grey pictures, 3 for colour.

    Returns:
        Two data sets for `assay.fit`. Without a folder `test`, about a fifth of the files is for testing, by a hash of
        each file's content.

    Raises:
        ConfigError: There is no such folder.
        DataError: It has no classes, or a class has no pictures.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ConfigError("data", str(path), "the path of a folder with a folder for each class")
    parted = _is_parted(root)
    train, names = _files(root / "train" if parted else root)
    schema = PictureSchema(classes=names, size=size, channels=channels)
    if parted:
        test, others = _files(root / "test", names)
        if extra := sorted(set(others) - set(names)):
            raise DataError(f"{root / 'test'} has a class {extra[0]!r} that {root / 'train'} has not")
        return _pictures(train, schema), _pictures(test, schema)
    testing = drawn_units(unit_keys([_digest(file) for file, _ in train]), "test", TEST_SHARE)
    if testing.all() or not testing.any():
        raise DataError(
            f"{root} has {len(train)} pictures: too few to set a fifth aside for testing; make folders train and test"
        )
    parts = ([one for one, for_test in zip(train, testing, strict=True) if for_test == part] for part in (False, True))
    first, second = (_pictures(part, schema) for part in parts)
    return first, second


def folder(path: Path | str, *, size: int = 32, channels: int = 3) -> DataBundle:
    """A folder of pictures as a data set in memory.

        folder/
          healthy/*.png
          ill/*.png

    Args:
        path: A folder with a folder for each class, or with folders `train` and `test` of such.
        size: The side of a picture in pixels.
        channels: 1 for grey pictures, 3 for colour.

    Returns:
        The data set. For one that does not fit into memory, `pictures` reads file by file.

    Raises:
        ConfigError: There is no such folder, or the test part holds pictures of the training part.
        DataError: It has no classes, or a file is not a picture.
    """
    train, test = pictures(path, size=size, channels=channels)
    parts = [_stacked(part) for part in (train, test)]
    schema, notes = train.schema, _NOTES.format(size=size, channels="one value" if channels == 1 else "three values")
    parted = _is_parted(Path(path).expanduser())
    if not parted:
        notes += " About one of every five pictures is set aside for testing, by a hash of its file's content."
    bundle = DataBundle(
        name=Path(path).name,
        train_x=parts[0][0],
        train_y=parts[0][1],
        test_x=parts[1][0],
        test_y=parts[1][1],
        classes=len(schema.classes),
        unit="one picture",
        notes=notes,
        source="own folder",
        task=schema.task,
        schema=schema.to_json(),
    )
    return check_parts(bundle) if parted else bundle


def _stacked(part: Pictures) -> tuple[Tensor, Tensor]:
    return torch.stack([part[i][0] for i in range(len(part))]), torch.tensor(list(part.labels), dtype=torch.int64)


def _is_parted(root: Path) -> bool:
    return (root / "train").is_dir() and (root / "test").is_dir()


def _pictures(found: Sequence[tuple[Path, int]], schema: PictureSchema) -> Pictures:
    return Pictures([file for file, _ in found], [label for _, label in found], schema)


def _files(root: Path, names: Sequence[str] | None = None) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    there = tuple(sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")))
    if len(there) < 2 and names is None:
        raise DataError(f"{root} has {len(there)} folders; at least two are required, one for each class")
    known = there if names is None else tuple(names)
    found = []
    for name in there:
        files = sorted(file for file in (root / name).rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise DataError(f"{root / name} has no pictures ({', '.join(SUFFIXES)})")
        if name in known:
            found += [(file, known.index(name)) for file in files]
    return found, there


def _digest(file: Path) -> str:
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


def as_array(images: Sequence[Any], schema: PictureSchema) -> npt.NDArray[np.float32]:
    """Pictures in memory, prepared in the same way."""
    return torch.stack([picture(image, schema.size, schema.channels) for image in images]).numpy()
