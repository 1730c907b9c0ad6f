"""ResNet and ViT of the ``transformers`` library, frozen or trained; from the hub or from a folder.

The library's modules are skeletons here: they hold no numbers and are called with the run's own
dictionary of tensors (``torch.func.functional_call``). This module also prepares the images,
because the library's own preparation needs torchvision.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, to_device
from fedunseen.core.settings import FolderOrName
from fedunseen.core.sizes import ARCHITECTURE, check_size, unbounded
from fedunseen.encoders import hub
from fedunseen.encoders.backbone import (
    Backbone,
    EncoderSettings,
    FrozenEncoder,
    Output,
    device,
    in_portions,
)
from fedunseen.encoders.images import HALF, IMAGENET, Normalization, Preparation, Resize, as_floats

_ENCODED_AT_ONCE = 32  # images; more is not faster
_LEAST = 224  # pixels: what the known networks were trained on

# Architectures that need no file where nothing pretrained is wanted.
_KNOWN: dict[str, dict[str, Any]] = {
    "microsoft/resnet-18": {
        "layer_type": "basic",
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512],
    },
    "microsoft/resnet-34": {
        "layer_type": "basic",
        "depths": [3, 4, 6, 3],
        "hidden_sizes": [64, 128, 256, 512],
    },
    "microsoft/resnet-50": {"depths": [3, 4, 6, 3]},
    "microsoft/resnet-101": {"depths": [3, 4, 23, 3]},
    "microsoft/resnet-152": {"depths": [3, 8, 36, 3]},
    "google/vit-base-patch16-224": {},
    "google/vit-base-patch16-224-in21k": {},
}


class _NetworkSettings(EncoderSettings):
    """What ResNet and ViT have in common."""

    weights: FolderOrName
    """A hub name, such as `facebook/dinov2-base` or `openai/clip-vit-base-patch16`, or a folder
    with `config.json` and `model.safetensors`. Pickles are never loaded."""
    trained: bool = False
    """Whether clients train the network in their local updates; otherwise it is frozen, and images
    are encoded once.
    """
    pretrained: bool = True
    """Whether to start from the weights that are there; otherwise from random ones (He, or as the
    architecture's authors do), for which well-known names need no download."""
    size: int | None = Field(None, ge=1, le=2048)
    """Side of the images that the network sees, resized without keeping their proportions; for
    `vision` a multiple of its patches'. Unset: `data.size`, but at least 224; for `vision`, as the
    weights' folder says."""
    resize: Resize = "bilinear"
    """How images are resized to the network's side, without keeping their proportions."""

    @model_validator(mode="after")
    def _check_start(self) -> "_NetworkSettings":
        if not self.pretrained and not self.trained:
            raise ValueError(
                "pretrained = false leaves random numbers where nothing is trained: set trained = "
                "true"
            )
        return self


class ResNetSettings(_NetworkSettings):
    """Settings of a residual network (He et al. 2016)."""

    weights: FolderOrName = "microsoft/resnet-18"
    """A hub name, such as `facebook/dinov2-base` or `openai/clip-vit-base-patch16`, or a folder
    with `config.json` and `model.safetensors`. Pickles are never loaded."""


class ViTSettings(_NetworkSettings):
    """Settings of a vision transformer (Dosovitskiy et al. 2021)."""

    weights: FolderOrName = "google/vit-base-patch16-224"
    """A hub name, such as `facebook/dinov2-base` or `openai/clip-vit-base-patch16`, or a folder
    with `config.json` and `model.safetensors`. Pickles are never loaded."""


class NetworkBackbone(Backbone):
    """A skeleton of the library, its numbers in the run's parameters ``f.<name>``."""

    batched = False
    trained = True

    def __init__(
        self,
        skeleton: nn.Module,
        prepare: Preparation,
        output: Output,
        load: Callable[[np.random.Generator], Params],
    ) -> None:
        self.skeleton = skeleton.eval()
        self.prepare = prepare
        self.output = output
        self._load = load
        # With a fixed momentum, BatchNorm does not need to count its batches.
        self._norms = [
            module for module in skeleton.modules() if isinstance(module, nn.BatchNorm2d)
        ]
        for norm in self._norms:
            norm.num_batches_tracked = None
        self.names = [name for name, _ in [*skeleton.named_parameters(), *skeleton.named_buffers()]]
        meta = {f"f.{name}": tensor.to("meta") for name, tensor in skeleton.state_dict().items()}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            features = self(meta, torch.empty((1, *prepare.image_shape), device="meta"))
        self._multiply_adds = int(counter.get_total_flops()) // 2
        super().__init__(tuple(features.shape[1:]))

    def init(self, rng: np.random.Generator) -> Params:
        """Return copies of the pretrained tensors, or random ones."""
        start = self._load(rng)
        return {f"f.{name}": start[name].clone() for name in self.names}

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return vectors (n, channels) or maps (n, channels, height, width) of images."""
        output = self._run(params, self.prepare(inputs), training=training)
        maps = as_floats(self.last_maps(output))
        return maps if self.output == "maps" else maps.mean((2, 3))

    def last_maps(self, output: Any) -> Tensor:
        """Return the last maps (n, channels, height, width) among what the network returns."""
        maps: Tensor = output.last_hidden_state
        return maps

    def multiply_adds(self) -> int:
        """Return the multiplications of convolutions and matrix products for one image."""
        return self._multiply_adds

    def _run(self, params: Params, *args: Any, training: bool = False) -> Any:
        """Call the skeleton with these parameters; in training, BatchNorm updates its statistics
        among them.
        """
        for norm in self._norms:
            # One sample is not a batch: it has a mean, but says nothing of the spread between
            # samples.
            norm.training = training and len(args[0]) > 1
        tensors = {name: params[f"f.{name}"] for name in self.names}
        return functional_call(self.skeleton, tensors, args, strict=True)


class _Attending(nn.Module):
    """A ViT cut in two: images to tokens, and tokens through the layers."""

    def __init__(self, vit: Any, interpolate: bool) -> None:
        super().__init__()
        self.vit = vit
        self.interpolate = interpolate
        self.attentions: list[Tensor] = []
        for layer in vit.layers:
            layer.attention.register_forward_hook(
                lambda _module, _args, output: self._keep(output[1])
            )

    def _keep(self, attention: Tensor | None) -> None:
        if attention is not None:  # only the eager implementation has them
            self.attentions.append(attention.mean(1))

    def forward(self, values: Tensor, part: Literal["tokens", "layers", "attended"]) -> Any:
        if part == "tokens":
            return self.vit.embeddings(values, interpolate_pos_encoding=self.interpolate)
        self.vit.config._attn_implementation = "eager" if part == "attended" else "sdpa"
        self.attentions = []
        for layer in self.vit.layers:
            values = layer(values, None)
        kept = self.attentions
        self.attentions = []
        values = self.vit.layernorm(values)
        return (values, torch.stack(kept)) if part == "attended" else values


class ViTBackbone(NetworkBackbone):
    """A vision transformer: also gives its tokens, and takes changed ones through its layers
    (SVIP).
    """

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the CLS token (n, D), or the patches' tokens as a map (n, D, side, side), after
        the last norm.
        """
        tokens = as_floats(self._run(params, self.tokens(params, inputs), "layers"))
        if self.output == "vectors":
            return tokens[:, 0]
        patches = tokens[:, 1:].transpose(1, 2)
        side = round(patches.shape[2] ** 0.5)
        return patches.reshape(len(patches), -1, side, side)

    def tokens(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the CLS token and the embedded patches of images, with positions: (n, 1 + patches,
        D).
        """
        return as_floats(self._run(params, self.prepare(inputs), "tokens"))

    def transform(self, params: Params, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Take tokens (n, 1 + patches, D) through the layers."""
        values, attentions = self._run(params, tokens, "attended")
        return as_floats(values), as_floats(attentions)


_Net = TypeVar("_Net", bound=NetworkBackbone)
Draw = Callable[[Tensor], tuple[float, float]]
"""From a weight to the standard deviation of its draw, and to how many deviations from zero it is
clipped.
"""


class _Network(FrozenEncoder, ABC):
    """What ResNet and ViT have in common: where weights come from, and encoding with frozen
    ones.
    """

    setting = "encoder.weights"
    library = "transformers"
    kind: ClassVar[str]
    normalization: ClassVar[Normalization]

    def __init__(self, settings: Any, image_shape: tuple[int, int, int], output: Output) -> None:
        super().__init__(settings, image_shape, output)
        hub.require_transformers(f"the encoder {self.kind!r}")
        self.size: int = settings.size or max(_LEAST, *image_shape[1:])
        self.trained = settings.trained
        self._frozen: tuple[NetworkBackbone, Params] | None = None
        self.folder: Path | None = None
        self.architecture = _KNOWN.get(settings.weights, {})
        if not settings.pretrained and settings.weights in _KNOWN and self.kind in settings.weights:
            return  # drawn, in a well-known architecture: no file is needed
        self.folder, self.architecture = hub.encoder_folder(
            settings.weights, self.kind, [self.kind]
        )
        if settings.pretrained:
            hub.weight_files(self.folder)

    def files(self) -> list[Path]:
        """Return configuration and weights; none of an architecture that is known without files."""
        if self.folder is None:
            return []
        files = hub.model_files(self.folder)
        return (
            files
            if self.settings.pretrained
            else [path for path in files if path.suffix == ".json"]
        )

    @abstractmethod
    def backbone(self) -> NetworkBackbone:
        """Return the network, to be trained."""

    def encode(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return features of images; see :meth:`FrozenEncoder.encode`."""
        network = self.backbone()
        self.shape = network.shape
        self.prepare = network.prepare
        return super().encode(images)

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images; the weights are loaded once."""
        if self._frozen is None:
            network = self.backbone()
            self._frozen = network, to_device(network.init(np.random.default_rng(0)), device())
        network, params = self._frozen
        return in_portions(images, _ENCODED_AT_ONCE, lambda part: network(params, part))

    def _build(
        self,
        backbone: type[_Net],
        skeleton: nn.Module,
        draw: Draw,
        model: type[Any],
        prefix: str = "",
        **options: Any,
    ) -> _Net:
        """Return a backbone that starts from the weights of the library's class ``model``, or from
        drawn ones.
        """

        def load(rng: np.random.Generator) -> Params:
            if not self.settings.pretrained:
                return _draw(skeleton, unbounded(rng), draw)
            assert self.folder is not None
            tensors = hub.load_model(model, self.folder, **options).state_dict()
            return {f"{prefix}{name}": tensor.detach() for name, tensor in tensors.items()}

        normalization, _ = hub.preparation(self.folder, self.normalization)
        prepare = Preparation(self.image_shape, self.size, self.settings.resize, *normalization)
        return backbone(skeleton, prepare, self.output, load)


class ResNet(_Network, name="resnet"):
    """A residual network: the map of its last stage, or the map's mean over cells."""

    Settings = ResNetSettings
    kind = "resnet"
    averages = True
    normalization = IMAGENET

    def backbone(self) -> NetworkBackbone:
        """Return the network, to be trained."""
        from transformers import ResNetConfig, ResNetModel

        config = ResNetConfig.from_dict(self.architecture)
        with torch.device("meta"):
            skeleton = ResNetModel(config)

        # He et al. 2015, keeping the variance of gradients, as the ResNet paper's authors do
        def he(weight: Tensor) -> tuple[float, float]:
            return (2 / (weight.shape[0] * weight[0, 0].numel())) ** 0.5, float("inf")

        return self._build(NetworkBackbone, skeleton, he, ResNetModel)


class ViT(_Network, name="vit"):
    """A vision transformer: the CLS token, or the patches' tokens as a map."""

    Settings = ViTSettings
    kind = "vit"
    normalization = HALF

    def backbone(self) -> ViTBackbone:
        """Return the network, to be trained."""
        from transformers import ViTConfig, ViTModel

        config = ViTConfig.from_dict(self.architecture)
        patch = config.patch_size
        size = self.size
        if not self.settings.pretrained:
            config.image_size = size  # the positions are drawn anyway
        if size % patch:
            raise ExperimentError(
                f"encoder.size: {size} is not a multiple of the patches' side, {patch}"
            )
        with torch.device("meta"):
            vit = ViTModel(config, add_pooling_layer=False)
            skeleton = _Attending(vit, interpolate=size != config.image_size)
        deviation = config.initializer_range
        return self._build(
            ViTBackbone,
            skeleton,
            lambda _: (deviation, 2.0),
            ViTModel,
            "vit.",
            add_pooling_layer=False,
        )


def _draw(skeleton: nn.Module, rng: np.random.Generator, draw: Draw) -> Params:
    """Draw a network: normalizations start as identities, biases at zero, all else normal."""
    numbers = sum(tensor.numel() for tensor in skeleton.state_dict().values())
    check_size("the network of encoder.weights", numbers, ARCHITECTURE, "name a smaller one")
    tensors: Params = {}
    for where, module in skeleton.named_modules():
        norm = isinstance(module, nn.BatchNorm2d | nn.LayerNorm)
        for name, tensor in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            full = f"{where}.{name}" if where else name
            if norm or name == "bias":
                is_scale = name in ("weight", "running_var")
                tensors[full] = torch.ones(tensor.shape) if is_scale else torch.zeros(tensor.shape)
                continue
            deviation, most = draw(tensor)
            values = rng.standard_normal(tuple(tensor.shape), dtype=np.float32)
            tensors[full] = torch.from_numpy(np.clip(values, -most, most) * np.float32(deviation))
    return tensors
