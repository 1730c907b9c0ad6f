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
    """Return a module's forward pass as an ONNX program, without the places of the code that made
    it; ``many`` names the first axis of each input, of any length.
    """
    axes = {name: torch.export.Dim(name, min=1) for name in dict.fromkeys(many)}
    logging.getLogger("torch.onnx").setLevel(
        logging.ERROR
    )  # of libraries for images that a graph does not need
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs),
            dynamo=True,
            verbose=False,
            input_names=list(names),
            output_names=[output],
            dynamic_shapes=tuple({0: axes[name]} for name in many),
        )
    return _without_notes(program)


def _without_notes(program: Any) -> Any:
    """Remove PyTorch's notes on a graph's parts: they hold stacks with paths of this machine."""
    model = program.model
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()
    return program
