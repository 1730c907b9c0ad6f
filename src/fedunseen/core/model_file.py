"""The file of a model: a safetensors file whose header has a JSON table beside the tensors.

``content`` of :func:`write_model_file` and :func:`read_model_file` has these entries:

- ``method``: its name and settings
- ``backbone``: ``input_shape`` of one sample; of a trained ``encoder`` its settings,
  ``image_shape`` and, where it needs files, the SHA-256 of these (``files``)
- ``classes``: names, attributes, groups, and the ids of each split
- ``scaling``: the steps of ``features`` and of ``semantics``
- ``calibration``: the ``offset``; ``seed``; ``pooled``
- ``answers``: of a few-shot method whose answers are fixed
- ``features_from``: which frozen encoder made the features, and the SHA-256 of its weights. The
  weights are not in the file.
- ``classifier``: what :class:`fedunseen.ZeroShotClassifier` needs beside the model

The tensors are ``params/...``, ``scaling/...``, ``semantics`` (classes, attributes), where samples
were held out ``confidence/...``, and, of a classifier that keeps them, ``statistics/...``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import (
    DEEPEST,
    TensorHeaderError,
    check_ordinary,
    check_tensor_header,
    depth,
    parse_json,
    write_tensors,
)
from fedunseen.core.removed_settings import without_removed

FORMAT = 1
"""The version of the file; a reader refuses a later one."""

DAMAGED = "model-file"
"""Code of a file that is not a model, or is damaged."""
NEWER = "model-version"
"""Code of a file of a later version."""

_KEY = "fedunseen model"
PARAMS = "params/"
"""Before the names of a model's parameters."""
_OLDER = "fedunseen classifier"  # a classifier's file before models had one

_WRONG = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

Content = tuple[dict[str, Any], dict[str, Tensor]]
"""The JSON table, and the tensors by name."""


def write_model_file(path: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model whole, or leave what was at ``path``."""
    about = {_KEY: json.dumps({"format": FORMAT, **content})}
    write_tensors(path, tensors, about, follow=True)


def before_parameters(metadata: Mapping[str, str] | None) -> str:
    """Return what the names of parameters begin with in a file with these metadata: nothing where
    it is no model's, but of tensors alone.
    """
    return PARAMS if metadata is not None and _KEY in metadata else ""


def read_model_file(path: Path, remedy: str = "save the model again") -> Content:
    """Read a model's table and tensors; the model itself checks what they mean.

    Raises:
        DataError: there is no such file, it is not a model, it is damaged, or a later version wrote
            it.
    """
    codes = DAMAGED, NEWER
    content, tensors = read_tensor_file(path, (_KEY, _OLDER), "a model", FORMAT, codes)
    with refusing_damage(path, remedy):
        if "settings" in content:  # a classifier's before models had a file
            content, tensors = _of_older_classifier(content, tensors)
        return content_of(content), tensors


def read_tensor_file(
    path: Path, keys: Sequence[str], what: str, newest: int, codes: tuple[str, str]
) -> Content:
    """Read a safetensors file with a JSON table beside the tensors.

    Args:
        path: the file.
        keys: under which of these the table may be.
        what: names the file's kind in messages.
        newest: the latest format that can be read.
        codes: of the error for a damaged file, and for one of a later version.

    Raises:
        DataError: there is no such file, it is of another kind, it is damaged, or a later version
            wrote it.
    """
    remedy = "give a file that `save` wrote"
    if path.is_dir():
        raise DataError(f"{path} is a folder, not the file of {what}: {remedy}", codes[0])
    check_ordinary(path)
    try:
        check_tensor_header(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            names = file.keys()  # it is not a mapping
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, TensorHeaderError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise DataError(f"{path} cannot be read as {what} ({reason}): {remedy}", codes[0]) from None
    key = next((key for key in keys if key in metadata), None)
    if key is None:
        raise DataError(f"{path} is not the file of {what}: {remedy}", codes[0])
    with refusing_damage(path, code=codes[0]):
        content = parse_json(metadata[key])
        if depth(content) > DEEPEST:
            raise ValueError("nested too deeply")
        if int(content["format"]) > newest:
            raise DataError(
                f"{path} has the format {content['format']} of a later version of FedUnseen, and "
                f"this one reads {newest}: update FedUnseen",
                codes[1],
            )
        for name, value in tensors.items():
            if value.isnan().any():
                raise ValueError(f"the tensor {name!r} holds NaN")
        return content, tensors


def content_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's table without settings that this version has no more."""
    backbone = dict(content["backbone"])
    if backbone.get("encoder"):
        encoder = backbone["encoder"]
        settings = without_removed("encoder", encoder["settings"])
        backbone["encoder"] = {**encoder, "settings": settings}
    method = without_removed("method", content["method"])
    return {**content, "method": method, "backbone": backbone}


@contextmanager
def refusing_damage(
    path: Path, remedy: str = "save the model again", code: str = DAMAGED
) -> Iterator[None]:
    """Raise a DataError that names the file for whatever is wrong with its content."""
    try:
        yield
    except FedUnseenError as error:
        message = str(error)
        has_code = type(error) is not DataError or error.code != DataError.code
        prefix = "" if message.startswith(str(path)) else f"{path}: "
        raise type(error)(prefix + message, error.code if has_code else code) from None
    except _WRONG as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} is damaged ({reason}): {remedy}", code) from None


def _of_older_classifier(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Content:
    """Return a classifier's file of format 1, of its own, as a model's with a classifier."""
    settings = about["settings"]
    data = settings["data"]
    seed = int(settings["run"]["seed"])
    params = {
        part: {
            key: value
            for key, value in without_removed(part, settings[part]).items()
            if key not in ("name", "rounds")
        }
        for part in ("method", "strategy")
    }
    classifier = {
        "arguments": {
            **about["estimator"],
            "method_params": params["method"],
            "strategy_params": params["strategy"],
            "features": data["features"],
            "semantics": data["semantics"],
            "calibration": about["calibration"],
            "random_state": seed,
        },
        **{key: about[key] for key in ("classes", "feature_names", "curve")},
        **{key: about.get(key, []) for key in ("stays", "fitted", "parties")},
    }
    names = list(map(str, about["classes"]))
    content = {
        "method": settings["method"],
        "backbone": {"input_shape": [about["features"]], "encoder": None},
        "classes": {
            "names": names,
            "attributes": about["attributes"],
            "groups": {},
            "seen": about["seen"],
            "validation": about["validation"],
            "unseen": sorted({*range(len(names))} - {*about["seen"]}),
            "undescribed": about.get("undescribed", []),
        },
        "scaling": {"features": data["features"], "semantics": data["semantics"]},
        "calibration": {"offset": about["calibration"]},
        "seed": seed,
        "pooled": False,
        "classifier": classifier,
    }
    renamed = {
        "params/" + name.removeprefix("model/") if name.startswith("model/") else name: value
        for name, value in tensors.items()
    }
    return content, renamed
