"""Make folders of backdoor triggers out of photographs: objects, the same drawn like cartoons, and
backgrounds.

``python benchmarks/accuracy/photo_triggers.py FOLDER_OF_PHOTOS triggers``, then
``--set attack.folder=triggers``: what docs/research/threats.md measures with
``fedunseen sweep fedzsl-defences``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedunseen.research.attacks.backdoor import as_cartoon

OBJECTS = ("bird", "cat", "dragonfly", "hot_dog", "owl", "parrot")  # none is a class of CIFAR-100
GROUNDS = {  # where there is nothing but background: left, top, right, bottom, of width and height
    "owl": (0.70, 0.0, 1.0, 0.55),
    "bird": (0.55, 0.62, 1.0, 1.0),
    "dragonfly": (0.0, 0.0, 0.35, 0.3),
    "sunflower": (0.8, 0.1, 1.0, 0.6),
}
CARTOON = 96  # pixels of its longer side


def main() -> None:
    """Ask for the folders and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="with bird.jpg, cat.jpg, ...")
    parser.add_argument("out", type=Path)
    if sys.argv[1:] == ["--smallest"]:  # to see that it runs
        with tempfile.TemporaryDirectory() as folder:
            for name in {*OBJECTS, *GROUNDS}:
                Image.fromarray(
                    np.random.default_rng(0).integers(256, size=(40, 50, 3), dtype=np.uint8)
                ).save(Path(folder) / f"{name}.jpg")
            make(Path(folder), Path(folder) / "triggers")
        return
    args = parser.parse_args()
    make(args.photos, args.out)


def make(photos: Path, out: Path) -> None:
    """Write the folders ``object``, ``style`` and ``background``."""
    for kind in ("background", "style", "object"):
        (out / kind).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in OBJECTS:
        photo = Image.open(photos / f"{name}.jpg").convert("RGB")
        photo.save(out / "object" / f"{name}.png")
        photo.thumbnail((CARTOON, CARTOON))
        pixels = np.moveaxis(np.asarray(photo, dtype=np.float32) / 255, -1, 0)
        drawn = np.moveaxis(as_cartoon(pixels[None], rng)[0], 0, -1)
        Image.fromarray((drawn * 255).astype(np.uint8)).save(out / "style" / f"{name}.png")
    for name, (left, top, right, bottom) in GROUNDS.items():
        photo = Image.open(photos / f"{name}.jpg").convert("RGB")
        width, height = photo.size
        box = (int(left * width), int(top * height), int(right * width), int(bottom * height))
        photo.crop(box).save(out / "background" / f"{name}.png")
    print(f"{2 * len(OBJECTS) + len(GROUNDS)} pictures in {out}")


if __name__ == "__main__":
    main()
