"""A quantized TFLite model as a frozen encoder: features that a phone can compute.

The features are inside such a model, before its classifier: the last map, and the vector that it is
pooled to. They are found in the graph as the input and the output of the last operation that pools
a map to one cell.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.deadline import check_deadline, deadline
from fedunseen.core.errors import DataError, ExperimentError, MissingDependencyError
from fedunseen.encoders.backbone import EncoderSettings, FrozenEncoder, Output
from fedunseen.encoders.images import Resize, as_images, resized

_TYPES = (np.uint8, np.int8)


class TFLiteSettings(EncoderSettings):
    """Settings of a quantized TFLite model."""

    model: Path | None = None
    """`run`: a run directory, of several seeds that of one. `tflite`: a quantized `.tflite` file,
    bytes in, with a global pooling (MobileNet, EfficientNet-Lite, ...)."""
    resize: Resize = "bilinear"
    """How images are resized to the network's side, without keeping their proportions."""


class _Tensors(NamedTuple):
    """Indices of a model's tensors."""

    image: int
    map: int
    pooled: int


class TFLite(FrozenEncoder, name="tflite"):
    """The features before a quantized model's classifier, or the map that it pools; frozen."""

    Settings = TFLiteSettings
    setting = "encoder.model"
    library = "ai-edge-litert"
    averages = True

    def __init__(
        self, settings: TFLiteSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        if settings.model is None:
            raise ExperimentError("encoder.model is missing: name the .tflite file")
        self.model = settings.model
        self.prepare = [settings.resize]
        if not self.model.is_file():
            raise DataError(f"{self.model} is missing: encoder.model has to name a .tflite file")
        interpreter = self._load()
        self._free = [interpreter]  # those that no thread works with just now
        self.tensors = _find_tensors(interpreter, self.model)
        self._details = {detail["index"]: detail for detail in interpreter.get_tensor_details()}
        planes = int(self._details[self.tensors.image]["shape"][3])
        if image_shape[0] not in (1, planes):
            raise DataError(
                f"{self.model} takes gray images, but these have {image_shape[0]} channels: give "
                "another model"
            )
        _, height, width, channels = self._details[self.tensors.map]["shape"].tolist()
        self.shape = (channels, height, width) if output == "maps" else (channels,)
        _, *size, _ = self._details[self.tensors.image]["shape"].tolist()
        self.size = (size[0], size[1])

    def files(self) -> list[Path]:
        """Return the model's file."""
        return [self.model]

    def compute(self, images: NDArray[Any]) -> NDArray[Any]:
        """Read one dequantized tensor for each image; the arithmetic is the same on any number of
        threads.
        """
        tensor = self.tensors.map if self.output == "maps" else self.tensors.pooled
        end = deadline()

        def one(image: NDArray[Any]) -> NDArray[np.float32]:
            check_deadline(end)
            return self._one(image, tensor)

        # One image at a time, since such models have their batch of one written into a reshape; in
        # threads, since an interpreter works outside Python's lock.
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            return np.stack(list(threads.map(one, images)))

    def _one(self, image: NDArray[Any], tensor: int) -> NDArray[np.float32]:
        detail = self._details[self.tensors.image]
        images = as_images(torch.from_numpy(np.array(image))[None], self.image_shape)
        bytes_ = (resized(images, self.size, self.settings.resize) * 255).round()
        cells = bytes_.expand(1, int(detail["shape"][3]), *self.size).permute(0, 2, 3, 1)
        shift = 128 if detail["dtype"] is np.int8 else 0
        try:
            interpreter = self._free.pop()
        except IndexError:
            interpreter = self._load()
        interpreter.set_tensor(self.tensors.image, (cells - shift).numpy().astype(detail["dtype"]))
        interpreter.invoke()
        value = interpreter.get_tensor(tensor)[0].astype(np.float32)
        self._free.append(interpreter)
        scale, zero = self._details[tensor]["quantization"]
        if scale:  # 0: not quantized
            value = (value - np.float32(zero)) * np.float32(scale)
        return (
            np.ascontiguousarray(value.transpose(2, 0, 1))
            if tensor == self.tensors.map
            else value.reshape(-1)
        )

    def _load(self) -> Any:
        """Return a new interpreter that keeps the tensors between input and output."""
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            raise MissingDependencyError(
                "the encoder 'tflite' needs ai-edge-litert: pip install 'fedunseen[litert]'"
            ) from None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # that keeping tensors takes memory: some 10 MB here
                interpreter = Interpreter(
                    str(self.model), num_threads=1, experimental_preserve_all_tensors=True
                )
                interpreter.allocate_tensors()
        except (ValueError, RuntimeError):
            raise DataError(f"{self.model} is not a TFLite model, or a damaged one") from None
        return interpreter


def _find_tensors(interpreter: Any, model: Path) -> _Tensors:
    """Find the image, the last map that is pooled to one cell, and the pooled vector."""
    inputs = interpreter.get_input_details()
    image = inputs[0]
    if (
        len(inputs) != 1
        or image["dtype"] not in _TYPES
        or len(image["shape"]) != 4
        or image["shape"][3] not in (1, 3)
    ):
        inputs_text = " and ".join(
            f"{np.dtype(d['dtype']).name} {tuple(d['shape'].tolist())}" for d in inputs
        )
        raise DataError(
            f"{model} takes {inputs_text}, not the bytes of one image (1, height, width, channels): "
            "give a quantized image model"
        )
    shapes = {
        detail["index"]: detail["shape"].tolist() for detail in interpreter.get_tensor_details()
    }
    # Operations of the graph as it was written come before those of the delegates that run them.
    for operation in reversed(interpreter._get_ops_details()):
        if operation["op_name"] not in ("MEAN", "AVERAGE_POOL_2D"):
            continue
        map = int(operation["inputs"][0])
        pooled = int(operation["outputs"][0])
        if (
            len(shapes[map]) == 4
            and shapes[map][1] * shapes[map][2] > 1
            and np.prod(shapes[pooled]) == shapes[map][3]
        ):
            return _Tensors(int(image["index"]), map, pooled)
    raise DataError(
        f"{model} pools no map to a vector: its features cannot be separated from the rest"
    )
