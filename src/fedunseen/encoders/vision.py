"""The image part of DINOv2, CLIP and SigLIP, of the ``transformers`` library: frozen, from the hub
or from a folder.

Where ``data.text_encoder`` names the weights of the same CLIP or SigLIP, a class's text lies where
its images do, which ``gaussian`` uses with ``method.prior = "semantics"``. The library's own
preparation of images needs torchvision.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from fedunseen.core.errors import ExperimentError
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

_AT_ONCE = 32  # images; more is not faster


class _Kind(NamedTuple):
    """A family of models."""

    model: str
    vector: str
    normalization: Normalization
    unit: bool
    side: int | None = None


_DINO = _Kind(
    "Dinov2Model", "pooler_output", IMAGENET, unit=False, side=224
)  # trained at 518, used at 224
_KINDS = {
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO._replace(model="Dinov2WithRegistersModel"),
    "clip": _Kind("CLIPVisionModelWithProjection", "image_embeds", CLIP, unit=True),
    "siglip": _Kind("SiglipVisionModel", "pooler_output", HALF, unit=True),
}
_KINDS |= {f"{name}_vision_model": _KINDS[name] for name in ("clip", "siglip")}


class VisionSettings(EncoderSettings):
    """Settings of the image part of a DINOv2, CLIP or SigLIP."""

    weights: FolderOrName = "facebook/dinov2-small"
    """A hub name, such as `facebook/dinov2-base` or `openai/clip-vit-base-patch16`, or a folder
    with `config.json` and `model.safetensors`. Pickles are never loaded."""
    size: PositiveInt | None = None
    """Side of the images that the network sees, resized without keeping their proportions; for
    `vision` a multiple of its patches'. Unset: `data.size`, but at least 224; for `vision`, as the
    weights' folder says."""
    resize: Resize = "bicubic"
    """How images are resized to the network's side, without keeping their proportions."""


class Vision(FrozenEncoder, name="vision"):
    """Vectors (DINOv2: the CLS token after the last norm; CLIP and SigLIP: as compared with texts),
    or maps.
    """

    Settings = VisionSettings
    setting = "encoder.weights"
    library = "transformers"

    def __init__(
        self, settings: VisionSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        hub.require_transformers("the encoder 'vision'")
        self.folder, whole = hub.encoder_folder(settings.weights, "vision", sorted(_KINDS))
        hub.weight_files(self.folder)
        self.kind = _KINDS[whole["model_type"]]
        config = whole.get("vision_config", whole)
        normalization, prepared = hub.preparation(self.folder, self.kind.normalization)
        trained_side = int(config.get("image_size", 224))
        side = settings.size or _side(prepared) or self.kind.side or trained_side
        self.patch = int(config.get("patch_size", 16))
        if side % self.patch:
            raise ExperimentError(
                f"encoder.size: {side} is not a multiple of the patches' side, {self.patch}"
            )
        self.interpolates = side != trained_side
        self.prepare = Preparation(image_shape, side, settings.resize, *normalization)
        self.cells = side // self.patch
        hidden = int(config.get("hidden_size", 768))
        projected = int(config.get("projection_dim") or whole.get("projection_dim") or 512)
        width = projected if self.kind.vector == "image_embeds" and output == "vectors" else hidden
        self.shape = (width, self.cells, self.cells) if output == "maps" else (width,)
        self._model: Any = None

    def files(self) -> list[Path]:
        """Return configuration and weights."""
        return hub.model_files(self.folder)

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images; the model is loaded once."""
        import transformers

        if self._model is None:
            kind = getattr(transformers, self.kind.model)
            self._model = hub.load_model(kind, self.folder).to(device())
        return in_portions(images, _AT_ONCE, lambda part: self._features(self.prepare(part)))

    def _features(self, planes: Tensor) -> Tensor:
        # DINOv2 interpolates its positions wherever the size is not its own; the others need the
        # option.
        options = {"interpolate_pos_encoding": True} if self.interpolates and self.kind.unit else {}
        outputs = self._model(pixel_values=planes, **options)
        if self.output == "vectors":
            vectors = as_floats(getattr(outputs, self.kind.vector))
            return torch.nn.functional.normalize(vectors, dim=1) if self.kind.unit else vectors
        patches = outputs.last_hidden_state[
            :, -(self.cells**2) :
        ]  # CLS and registers, if there are any, stand before
        return as_floats(patches.transpose(1, 2).reshape(len(patches), -1, self.cells, self.cells))


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
