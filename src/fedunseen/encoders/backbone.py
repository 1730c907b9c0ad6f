"""What an encoder is: it turns images into features, once and for all (frozen) or inside the model
(trained).

A frozen encoder replaces a benchmark's images by features before anything else happens. A trained
one goes into the model as its backbone f: the clients' inputs stay images, and every loss calls the
backbone on them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedunseen.core.array_cache import cached_features, files_digest
from fedunseen.core.deadline import check_deadline, deadline
from fedunseen.core.parameters import Params
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.encoders.images import Augmentation

CARRIED_MB = 20.0
"""Megabytes of an encoder's weights that a run directory takes along, so that ``predict`` finds
them. Larger ones are found by their content where they were used before, or given."""
Output = Literal["vectors", "maps"]
"""``vectors``: (d,) a sample; ``maps``: (channels, height, width)."""


class EncoderSettings(NamedSettings):
    """Settings that every encoder has."""

    augment: tuple[Augmentation, ...] = ()
    """Random changes of the training images of a trained encoder: `shift` (by up to an eighth of
    the side), `flip` (left to right, where that does not change the class)."""


class Backbone:
    """f, the part of a model that turns a sample into visual features. This one passes frozen
    features through.

    Attributes:
        shape: of one sample's features: (d,) for vectors, (channels, height, width) for maps.
        batched: is pure, so that it can be mapped over clients with ``vmap``. One with running
            statistics is not.
        trained: has parameters.
        convolves: spends its time in convolutions, which on a CPU gain nothing from being mapped
            over tasks.
        image_shape: (channels, height, width) of the images that it takes, if it takes images.
        input_shape: of one sample as it comes in.
        largest: the numbers of the largest output of a layer for one sample; 0 where no setting
            chooses it.
        encoder: the trained encoder whose backbone it is; None without one.
    """

    batched: bool = True
    trained: bool = False
    convolves: bool = False
    image_shape: tuple[int, int, int] | None = None
    largest: int = 0
    encoder: "Encoder | None" = None

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.input_shape = shape

    def init(self, rng: np.random.Generator) -> Params:
        """Return the parameters of round 0, under names that begin with ``f.``."""
        return {}

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the features (n, *shape), float32, of ``inputs``.

        Running statistics (``fedunseen.core.parameters.is_statistic``) are used as they are, or, in
        ``training``, replaced by the batch's own and updated in place.
        """
        return (
            inputs
            if inputs.dtype == torch.float32
            else inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        )

    def multiply_adds(self) -> int:
        """Return the multiplications that one sample takes; 0 where nothing is computed."""
        return 0


class AveragedMaps(Backbone):
    """Frozen maps for a method that takes vectors: the mean over cells."""

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Average (n, channels, height, width) to (n, channels)."""
        return super().__call__(params, inputs).mean((-2, -1))


class Encoder(Named):
    """Base of all encoders: subclass, and register the class under its name (``fedunseen.encoders``
    entry points).

    Args:
        settings: the ``[encoder]`` section.
        image_shape: (channels, height, width) of the images.
        output: what the method takes.

    Attributes:
        reads: ``images``, or ``sequences``, whose ``image_shape`` is (1, steps, width).
        trained: goes into the model through :meth:`backbone`; otherwise frozen, used through
            :meth:`encode`.
        setting: the setting that names the weights, of an encoder that has any in files.
        installed: an extra of this package brings its weights, so that no run directory has to
            carry them.
    """

    Settings: ClassVar[type[EncoderSettings]] = EncoderSettings
    reads: ClassVar[Literal["images", "sequences"]] = "images"
    trained: bool = False
    setting: ClassVar[str] = ""
    installed: bool = False

    def __init__(self, settings: Any, image_shape: tuple[int, int, int], output: Output) -> None:
        self.settings = settings
        self.image_shape = image_shape
        self.output = output

    def files(self) -> list[Path]:
        """Return the files that it is made of: without them, a finished run reads no input."""
        return []

    def backbone(self) -> Backbone:
        """Return the trained backbone."""
        raise TypeError(f"{type(self).__name__} is frozen: encode images with it")

    def encode(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return features of images (n, C, H, W), bytes or floats in [0, 1].

        Returns:
            (n, d) float32, or (n, channels, height, width) float16, perhaps a memory map of a file
            in the cache.
        """
        raise TypeError(f"{type(self).__name__} is trained: it has no features of its own")


def make_backbone(encoder: Encoder | None, input_shape: Sequence[int], takes: Output) -> Backbone:
    """Return what turns samples of ``input_shape`` into the features that a method ``takes``."""
    if encoder is not None and encoder.trained:
        backbone = encoder.backbone()
        backbone.encoder = encoder
    elif takes == "vectors" and len(input_shape) > 1:
        backbone = AveragedMaps(tuple(input_shape[:1]))
    else:
        backbone = Backbone(tuple(input_shape))
    backbone.input_shape = tuple(input_shape)
    return backbone


class FrozenEncoder(Encoder):
    """Base of encoders that may be frozen: they encode images once and for all, and keep the
    features in the cache.

    Attributes:
        shape: of one image's features: (d,) for vectors, (channels, height, width) for maps.
        prepare: how images are prepared, as JSON values.
        library: the package that computes the features: its releases may round differently.
        averages: its vectors are means over places of the maps that it gives with ``maps``.
    """

    averages: ClassVar[bool] = False
    shape: tuple[int, ...]
    prepare: Any
    library: str

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images."""
        raise NotImplementedError

    def graph(self) -> nn.Module | None:
        """Return a module from images in bytes to vectors, of operations that a graph without
        Python can hold (ONNX); None: there is none.
        """
        return None

    def with_maps(self) -> "FrozenEncoder | None":
        """Return the encoder of the maps whose means over places are this one's vectors; None:
        they are no such means.
        """
        return type(self)(self.settings, self.image_shape, "maps") if self.averages else None

    def encode(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return vectors (n, d) float32 or maps (n, channels, height, width) float16, computed on a
        GPU if there is.
        """
        maps = len(self.shape) == 3
        depends = {
            "encoder": self.settings.name,
            "weights": files_digest(self.files()),
            "output": "maps" if maps else "vectors",
            "prepare": self.prepare,
            "device": device().type,
            "library": [self.library, version(self.library), version("torch")],
        }
        return cached_features(
            depends, images, self.shape, "float16" if maps else "float32", self.compute
        )


class NoEncoder(Encoder, name="none"):
    """No encoder. Where a benchmark has nothing but images, one of the others has to be named."""


def device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def in_portions(
    images: NDArray[Any], at_once: int, encode: Callable[[Tensor], Tensor], apart: bool = False
) -> NDArray[Any]:
    """Return the features of images."""
    place = device()
    end = deadline()

    def portion(start: int) -> NDArray[Any]:
        check_deadline(end)
        with torch.inference_mode():
            part = torch.from_numpy(np.array(images[start : start + at_once])).to(place)
            return np.asarray(encode(part).cpu().contiguous().numpy())

    threads = torch.get_num_threads() if apart and place.type == "cpu" else 1
    at_once = min(at_once, -(-len(images) // threads))  # so that every thread has some of them
    starts = range(0, len(images), at_once)
    if min(threads, len(starts)) < 2:
        return np.concatenate([portion(start) for start in starts])
    # A thread for each portion, not several within each layer of one: those wait for the slowest
    # after every layer, which costs several times the processor time where cores have other work
    # too. The bits are those of one thread.
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return np.concatenate(list(pool.map(portion, starts)))
    finally:
        torch.set_num_threads(threads)
