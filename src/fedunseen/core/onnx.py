"""Networks of PyTorch as ONNX graphs."""

import logging
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedunseen.core.errors import MissingDependencyError


def check_onnx(feature: str) -> None:
    """Refuse ``feature`` where a library of the extra `onnx` is missing: torch says less plainly
    that it is.
    """
    for library in ("onnx", "onnxruntime", "onnxscript"):
        try:
            import_module(library)
        except ImportError:
            raise MissingDependencyError(
                f"{feature} needs a library that is not installed ({library}): pip install "
                "'fedunseen[onnx]'"
            ) from None


def onnx_graph(
    module: nn.Module,
    inputs: Sequence[Tensor],
    names: Sequence[str],
    output: str,
    many: Sequence[str],
) -> Any:
    """Return a module's forward pass as an ONNX program; ``many`` names the first axis of each
    input, of any length.
    """
    axes = {name: torch.export.Dim(name, min=1) for name in dict.fromkeys(many)}
    logging.getLogger("torch.onnx").setLevel(
        logging.ERROR
    )  # of libraries for images that a graph does not need
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.onnx.export(
            module.eval(),
            tuple(inputs),
            dynamo=True,
            verbose=False,
            input_names=list(names),
            output_names=[output],
            dynamic_shapes=tuple({0: axes[name]} for name in many),
        )
