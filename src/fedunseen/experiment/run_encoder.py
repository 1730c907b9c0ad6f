"""A finished run as a frozen encoder: its trained features, for another method on top of them."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.array_cache import cached_features, files_digest
from fedunseen.core.errors import ExperimentError
from fedunseen.encoders.backbone import Encoder, EncoderSettings, Output
from fedunseen.experiment.result.run import load_run
from fedunseen.methods import Method

_BLOCK = 256  # images at once
_NEEDED = (
    "manifest.json",
    "result.json",
    "model.safetensors",
    "classes.csv",
)
_OLDER = "scaling.safetensors"  # of a run whose model's file has parameters alone


class RunEncoderSettings(EncoderSettings):
    """Settings of a run as an encoder."""

    name: Literal["run"] = "run"
    model: Path | None = None
    """`run`: a run directory, of several seeds that of one. `tflite`: a quantized `.tflite` file,
    bytes in, with a global pooling (MobileNet, EfficientNet-Lite, ...)."""


class RunEncoder(Encoder):
    """The features f of a run's merged model: what its training has made of images.

    A method in closed form on top of them keeps what was trained and adds what sums can: exact
    merging, examples, classes that come later.
    """

    Settings: ClassVar[type[EncoderSettings]] = RunEncoderSettings
    setting: ClassVar[str] = "encoder.model"

    def __init__(
        self, settings: RunEncoderSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        if settings.model is None:
            raise ExperimentError(
                "encoder.model is missing: name the run directory whose features are wanted"
            )
        if output != "vectors":
            raise ExperimentError(
                "encoder.name = 'run' gives vectors: choose a method on vectors, for example "
                "gaussian"
            )
        self.run = run = load_run(settings.model).first
        run.check_one_model("to encode with")
        names = list(run.manifest.get("encoder", {}).get("files", ()))
        if names and all(
            (run.path / name).is_file() for name in names
        ):  # weights lie beside, as of a carried run
            self.run = load_run(run.path, run.path / names[0] if len(names) == 1 else run.path)
        try:
            method = self.run.method
        except RecursionError:
            raise ExperimentError(
                f"{settings.model} is encoded by itself: name another run in encoder.model"
            ) from None
        if type(method).features is Method.features and not method.backbone.trained:
            raise ExperimentError(
                f"{settings.model}: method.name = {self.run.method_name!r} has learned no features "
                "of its own: name a run that trained some, for example fedzsl with method.hidden "
                "or a trained encoder"
            )

    def files(self) -> list[Path]:
        """Return what the run's features need of its directory, and the weights of its own encoder.

        A run on top of a run on top of a run still needs the first one's directory: their files
        have the same names.
        """
        inner = [] if self.run.experiment.encoder.name == "run" else self.run.encoder_files
        older = [path] if (path := self.run.path / _OLDER).is_file() else []
        return [*(self.run.path / name for name in _NEEDED), *older, *inner]

    def encode(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return features (n, d) float32 of images."""
        depends = {"encoder": "run", "model": files_digest([self.run.path / "model.safetensors"])}
        width = self._features(images[:1]).shape[1]
        return cached_features(depends, images, (width,), "float32", self._features)

    def _features(self, images: NDArray[Any]) -> NDArray[np.float32]:
        run = self.run
        shape = tuple(self.run.manifest["input_shape"])
        parts = []
        for start in range(0, len(images), _BLOCK):
            rows = np.array(images[start : start + _BLOCK])
            if run.manifest.get("picture_shape") is not None:
                rows = run.encoded(rows)
            elif len(shape) == 1:
                rows = rows.reshape(len(rows), -1)
            inputs = torch.from_numpy(run.scaler(rows) if rows.ndim == 2 else rows)
            with torch.no_grad():
                parts.append(run.method.features(run.params, inputs).float().numpy())
        return np.concatenate(parts)
