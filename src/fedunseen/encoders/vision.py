"""Image encoders of the ``transformers`` library, frozen, from the hub or from a folder: CLIP,
SigLIP, DINO, ConvNeXt, Swin and others.

``POOLING`` lists the types of models, each with what becomes of an image. A model's preparation of
images is read from its ``preprocessor_config.json`` and computed here: the library's own needs
torchvision for some models.

Where ``data.text_encoder`` names the weights of the same CLIP or SigLIP, a class's text lies where
its images do, which ``gaussian`` uses with ``method.prior = "semantics"``.
"""

from math import isqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.settings import FolderOrName
from fedunseen.encoders import hub
from fedunseen.encoders.backbone import EncoderSettings, FrozenEncoder, Output, device, in_portions
from fedunseen.encoders.images import (
    CLIP,
    HALF,
    IMAGENET,
    Normalization,
    Preparation,
    Resize,
    as_floats,
)

_WIDEST = 4096  # pixels of a side: a network of patches takes memory by the fourth power
_AT_ONCE = 32  # images; more is not faster

Vector = Literal["text space", "first token", "mean token", "pooled"]
"""``text space``: where the same model's texts lie, of unit length. ``first token``: the CLS token
after the last norm. ``mean token``: the mean of the patches' tokens. ``pooled``: the model's own
``pooler_output``, without a classifier.
"""


class Pooling(NamedTuple):
    """What becomes of an image in a family of models.

    Attributes:
        vector: which of the model's outputs is the vector.
        normalization: of the channels, where the folder has no ``preprocessor_config.json``.
        model: class of the library; "": the one of its ``AutoModel``.
        output: attribute of what the model returns that holds the vector.
        patches: a token stands for a patch of the image; otherwise maps come from a pyramid.
        side: of the images where the folder does not say it; None: as the weights were trained.
        sides: on which images other than those of its training the model works: of ``any`` side,
            only when told so (``option``), or on none (``one``).
    """

    vector: Vector
    normalization: Normalization
    model: str = ""
    output: str = "pooler_output"
    patches: bool = True
    side: int | None = None
    sides: Literal["any", "option", "one"] = "option"


_FIRST = Pooling("first token", HALF)
_DINO = Pooling(
    "first token", IMAGENET, side=224, sides="any"
)  # DINOv2 was trained at 518, and is used at 224
_MEAN = Pooling("mean token", IMAGENET)
_PYRAMID = Pooling("pooled", IMAGENET, patches=False, sides="any")
_CLIP = Pooling("text space", CLIP, "CLIPVisionModelWithProjection", "image_embeds")
_META = _CLIP._replace(model="MetaClip2VisionModelWithProjection")
_SIGLIP = Pooling("text space", HALF, "SiglipVisionModel")
_SIGLIP2 = _SIGLIP._replace(model="Siglip2VisionModel")

POOLING: dict[str, Pooling] = {
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "metaclip_2": _META,
    "metaclip_2_vision_model": _META,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "siglip2": _SIGLIP2,
    "siglip2_vision_model": _SIGLIP2,
    "aimv2": Pooling("text space", CLIP, sides="one"),
    "aimv2_vision_model": Pooling("pooled", CLIP, sides="one"),
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
    "dinov3_vit": _DINO,
    "vit": _FIRST,
    "deit": _FIRST._replace(normalization=IMAGENET),
    "vit_msn": _FIRST._replace(normalization=IMAGENET),
    "ijepa": _MEAN,
    "data2vec-vision": _MEAN._replace(normalization=HALF),
    "beit": Pooling("pooled", HALF),
    "dinov3_convnext": _PYRAMID,
    **dict.fromkeys(("convnext", "convnextv2", "swin", "swinv2", "focalnet"), _PYRAMID),
    **dict.fromkeys(("resnet", "regnet"), _PYRAMID),
    "mobilenet_v2": _PYRAMID._replace(normalization=HALF),
}
"""``model_type`` of a ``config.json`` -> its pooling. RAD-DINO's is ``dinov2``; SigLIP 2's is
``siglip``, or ``siglip2`` where images keep their proportions, which they do not here.
"""


class VisionSettings(EncoderSettings):
    """Settings of an image encoder of the library."""

    weights: FolderOrName = "facebook/dinov2-small"
    """A hub name, such as `facebook/dinov2-base` or `openai/clip-vit-base-patch16`, perhaps with
    `@REVISION`, or a folder with `config.json` and `model.safetensors`. Pickles are never loaded,
    and no code of a hub is executed."""
    size: int | None = Field(None, ge=1, le=2048)
    """Side of the images that the network sees, resized without keeping their proportions; for
    `vision` a multiple of its patches'. Unset: `data.size`, but at least 224; for `vision`, as the
    weights' folder says."""
    resize: Resize | None = None
    """How images are resized to the network's side, without keeping their proportions; unset, as
    the weights' folder says."""


class Vision(FrozenEncoder, name="vision"):
    """Vectors, as ``POOLING`` says of the model's type, or maps."""

    Settings = VisionSettings
    setting = "encoder.weights"
    library = "transformers"

    def __init__(
        self, settings: VisionSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        hub.require_transformers("the encoder 'vision'")
        self.folder, self.whole = hub.encoder_folder(settings.weights, "vision", sorted(POOLING))
        hub.weight_files(self.folder)
        with hub.naming(self.folder):
            self._read(settings, image_shape)

    def _read(self, settings: VisionSettings, image_shape: tuple[int, int, int]) -> None:
        """Read what the folder says of its model and of images."""
        self.kind = POOLING[self.whole["model_type"]]
        self.config = _image_config(self.whole)
        normalization, prepared = hub.preparation(self.folder, self.kind.normalization)
        trained = _trained_side(self.config)
        side = settings.size or _side(prepared) or self.kind.side or trained
        self.patch = int(self.config.get("patch_size", 16)) if self.kind.patches else 1
        if not 1 <= side <= _WIDEST:
            raise ExperimentError(
                f"encoder.size: {side} is no side of an image: choose one from 1 to {_WIDEST:,}"
            )
        if side % self.patch:
            raise ExperimentError(
                f"encoder.size: {side} is not a multiple of the patches' side, {self.patch}"
            )
        if self.kind.sides == "one" and side != trained:
            raise ExperimentError(
                f"encoder.size: a model of the type {self.whole['model_type']!r} sees images of "
                f"{trained} x {trained} alone: leave it out"
            )
        self.interpolates = side != trained
        resize = settings.resize or hub.resampling(self.folder, prepared)
        self.prepare = Preparation(image_shape, side, resize, *normalization)
        self._model: Any = None
        self.shape = self._patch_shape() if self.kind.patches else self._pyramid_shape()

    def files(self) -> list[Path]:
        """Return configuration and weights."""
        return hub.model_files(self.folder)

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images; the model is loaded once."""
        import transformers

        if self._model is None:
            kind = getattr(transformers, self.kind.model or "AutoModel")
            unused = ("pooler.",) if self.kind.vector != "pooled" else ()
            width = hub.projection(self.whole) if self.kind.output == "image_embeds" else {}
            self._model = hub.load_model(kind, self.folder, unused, **width).to(device())
        with hub.naming(self.folder):
            return in_portions(images, _AT_ONCE, lambda part: self._features(self.prepare(part)))

    def _patch_shape(self) -> tuple[int, ...]:
        """Return the shape of features whose model has a token for each patch."""
        cells = self.prepare.size // self.patch
        hidden = int(self.config.get("hidden_size", 768))
        if self.output == "maps":
            return (hidden, cells, cells)
        if self.kind.output == "image_embeds" or self.whole["model_type"] == "aimv2":
            return (int(self.whole.get("projection_dim", 512)),)
        return (hidden,)

    def _pyramid_shape(self) -> tuple[int, ...]:
        """Return the shape of features of a pyramid, from a model without numbers."""
        from transformers import AutoConfig, AutoModel

        with hub.naming(self.folder), torch.device("meta"), torch.no_grad():
            self._model = AutoModel.from_config(AutoConfig.for_model(**self.whole)).eval()
            side = self.prepare.size
            shape = tuple(self._features(torch.empty(1, 3, side, side)).shape[1:])
        self._model = None
        return shape

    def _features(self, planes: Tensor) -> Tensor:
        outputs = self._outputs(planes)
        if self.output == "maps":
            return self._maps(outputs.last_hidden_state)
        if self.kind.vector == "mean token":
            tokens = outputs.last_hidden_state[:, -((self.prepare.size // self.patch) ** 2) :]
            return as_floats(tokens).mean(1)
        if self.kind.vector == "first token":
            return as_floats(outputs.last_hidden_state[:, 0])
        pooled = getattr(outputs, self.kind.output)
        if pooled is None:
            raise DataError(
                f"{self.folder} has no pooling: its config.json leaves out the head that turns "
                "patches into one vector: name weights with one, or a method that takes maps",
                "encoder-pooling",
            )
        vectors = as_floats(pooled).flatten(1)
        unit = self.kind.vector == "text space"
        return torch.nn.functional.normalize(vectors, dim=1) if unit else vectors

    def _outputs(self, planes: Tensor) -> Any:
        """Return what the model returns for images (n, 3, side, side)."""
        if self.kind.model == "Siglip2VisionModel":
            return self._model(**_patches(planes, self.patch))
        if self.whole["model_type"] == "aimv2":
            return self._model.get_image_features(pixel_values=planes)
        needed = self.interpolates and self.kind.sides == "option"
        return self._model(
            pixel_values=planes, **({"interpolate_pos_encoding": True} if needed else {})
        )

    def _maps(self, states: Tensor) -> Tensor:
        """Return the last states as maps (n, channels, height, width); CLS and registers, which
        stand before the patches, are left out.
        """
        if states.ndim == 4:
            return as_floats(states)
        cells = self.prepare.size // self.patch if self.kind.patches else isqrt(states.shape[1])
        patches = states[:, -(cells**2) :].transpose(1, 2)
        return as_floats(patches.reshape(*patches.shape[:2], cells, cells))


def _image_config(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that is about images."""
    config: dict[str, Any] = whole.get("vision_config") or whole
    return config


def _trained_side(config: dict[str, Any]) -> int:
    """Return the side of the images that a model was trained on."""
    if "num_patches" in config:  # SigLIP 2's images of any proportions, taken as squares
        return isqrt(int(config["num_patches"])) * int(config.get("patch_size", 16))
    side = config.get("image_size", 224)
    return int(side if isinstance(side, int) else min(side))


def _patches(planes: Tensor, patch: int) -> dict[str, Tensor]:
    """Return images as SigLIP 2 takes those of any proportions: a row for each patch."""
    n, channels, side, _ = planes.shape
    cells = side // patch
    cut = planes.reshape(n, channels, cells, patch, cells, patch).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": cut.reshape(n, cells**2, -1),
        "pixel_attention_mask": torch.ones(n, cells**2, device=planes.device),
        "spatial_shapes": torch.tensor([[cells, cells]] * n, device=planes.device),
    }


def _side(config: dict[str, Any]) -> int | None:
    """Return the side of images that a folder's ``preprocessor_config.json`` names, after its
    crop.
    """
    for key in ("crop_size", "size"):
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("height", value.get("shortest_edge"))
        if isinstance(value, int):
            return value
    return None
