"""Pretrained weights: a folder in the format of the Hugging Face hub, on this machine or fetched
from the hub.
"""

import math
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedunseen.core.deadline import LateError
from fedunseen.core.errors import DataError, FedUnseenError, MissingDependencyError
from fedunseen.core.files import check_ordinary, parse_json, write_json
from fedunseen.encoders.images import Normalization, Resize

# The files that are fetched: no pickles (*.bin, *.pt), and no copies for other frameworks, which
# lie in folders.
_WANTED = ("model*.safetensors", "*.json", "*.txt", "*.model")

# Their preparation is a resize, a scale and a normalization, which `images` computes.
_PREPARED = (
    *("Beit", "Bit", "CLIP", "ConvNext", "DINOv3ViT", "DeiT"),
    *("MobileNetV2", "Siglip", "Siglip2", "ViT"),
)

_BILINEAR = ("DINOv3ViT", "MobileNetV2", "Siglip2", "ViT")  # the others resize by bicubic
_RESAMPLES: dict[Any, Resize] = {2: "bilinear", 3: "bicubic"}

_LARGEST = 1e30  # of a number of a preparation

# Keys of config.json by which the library fetches code, or weights that no digest covers; and the
# types of models that another library makes, which fetches them by their name.
_ELSEWHERE = re.compile(
    "implementation|kernel_config|use_kernels|transformers_weights|quantization_config|backbone$"
)
_OF_TIMM = ("timm_backbone", "timm_wrapper")
_REPEATED = re.compile("layers|depths|blocks|experts")  # keys that count parts, each with a tensor
_ALLOWED = 2**24  # numbers that a model may have beside its weights, and an integer of config.json

MISSING = "encoder-missing"
"""Code of weights that are nowhere."""
OTHER_TYPE = "encoder-type"
"""Code of a model of another type than what it is named for takes."""

_local = ContextVar("local", default=False)
_of_others: ContextVar[Collection[str]] = ContextVar("of_others", default=())


@contextmanager
def local_files_only(only: bool = True) -> Iterator[None]:
    """Fetch nothing from the hub in this context: a file names the weights there, not a user.

    ``only``: what :func:`may_fetch` did not allow where this context's work was given.
    """
    before = _local.set(only or _local.get())
    try:
        yield
    finally:
        _local.reset(before)


def may_fetch() -> bool:
    """Say whether this context fetches from the hub what is not on this machine."""
    return not _local.get()


@contextmanager
def named_by_others(names: Collection[str]) -> Iterator[None]:
    """Look for these names in the hub alone in this context: whether a folder here is called like
    one is nobody else's affair.
    """
    before = _of_others.set(names)
    try:
        yield
    finally:
        _of_others.reset(before)


def require_transformers(feature: str) -> None:
    """Refuse to continue without the library."""
    try:
        import transformers
    except ImportError:
        raise MissingDependencyError(
            f"{feature} needs transformers: pip install 'fedunseen[encoders]'"
        ) from None
    # `load_model` checks what it would warn of: missing weights
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def weights_folder(weights: str, where: str) -> Path:
    """Return the folder that ``weights`` names: itself, or the local copy of a hub repository,
    fetched if need be. ``OWNER/NAME@REVISION`` names a commit, a tag or a branch of it.
    """
    path = Path(weights).expanduser()
    if weights not in _of_others.get() and path.is_dir():
        return path
    if path.is_absolute() or weights.startswith((".", "~")) or weights.count("/") > 1:
        raise DataError(
            f"{path} is not a folder: {where} has to name one with config.json and "
            "model.safetensors",
            MISSING,
        )
    from huggingface_hub import snapshot_download

    local = _local.get()
    name, _, revision = weights.partition("@")
    pinned: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        return Path(
            snapshot_download(name, allow_patterns=list(_WANTED), local_files_only=local, **pinned)
        )
    except (
        Exception
    ) as error:  # names, rights, network, certificates: a dozen classes of three libraries
        if local:
            raise DataError(
                f"{where}: {weights!r} is not on this machine, and is not downloaded because a run "
                f"or a model names it: get it with `hf download {name}`, or give its folder",
                MISSING,
            ) from None
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"{where}: {weights!r} is not a folder here, and the hub does not give it "
            f"({reason[0].rstrip('.')}): check the name and the connection, or give a folder with "
            "config.json and model.safetensors",
            MISSING,
        ) from None


def revision_of(folder: Path) -> str | None:
    """Return the commit of the hub that a folder is the local copy of; None for other folders."""
    commit = folder.name
    is_copy = folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", commit)
    return commit if is_copy else None


def encoder_folder(weights: str, encoder: str, kinds: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of an encoder's weights and its configuration, of a model of one of these
    types.
    """
    folder = weights_folder(weights, "encoder.weights")
    config = read_config(folder)
    if (kind := config.get("model_type")) in kinds:
        return folder, config
    if is_text_model(config):
        raise DataError(
            f"{folder} holds a model of texts ({kind}), and encoder.weights is for pictures: name "
            "it in data.text_encoder",
            OTHER_TYPE,
        )
    code = config.get("auto_map")
    raise DataError(
        f"{folder} holds a model of the type {kind!r}, but encoder.name = {encoder!r} takes "
        f"{', '.join(kinds)}{'; code of a hub is not executed' if code else ''}: name other "
        "weights or another encoder",
        OTHER_TYPE,
    )


def is_text_model(config: dict[str, Any]) -> bool:
    """Say whether a configuration is of a model that reads texts alone."""
    return "vocab_size" in config and not {"vision_config", "patch_size"} & config.keys()


def is_image_model(config: dict[str, Any]) -> bool:
    """Say whether a configuration is of a model that reads images alone."""
    return "text_config" not in config and "vocab_size" not in config and "num_channels" in config


def read_config(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` says of a model, without what names code or files elsewhere.

    Raises:
        DataError: it describes more parts than the weights beside it can have.
    """
    config: dict[str, Any] = _inert(read_json(folder / "config.json"))
    if weights := sorted(folder.glob("model*.safetensors")):
        tensors, numbers = _size_of(weights)
        _check_counts(folder, config, tensors, max(numbers, _ALLOWED))
    return config


def _inert(value: Any) -> Any:
    """Return a part of a configuration without the keys of ``_ELSEWHERE``."""
    if isinstance(value, list):
        return [_inert(item) for item in value]
    if not isinstance(value, dict):
        return value
    if (kind := value.get("model_type")) in _OF_TIMM:
        raise DataError(
            f"config.json names a model of the type {kind!r}, which another library would fetch: "
            "name other weights",
            OTHER_TYPE,
        )
    return {key: _inert(item) for key, item in value.items() if not _ELSEWHERE.search(key)}


def _size_of(weights: Sequence[Path]) -> tuple[int, int]:
    """Return how many tensors safetensors files have, and how many numbers; reads headers alone."""
    from safetensors import SafetensorError, safe_open

    tensors = numbers = 0
    for path in weights:
        check_ordinary(path)
        try:
            with safe_open(path, "pt") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        except (OSError, SafetensorError):
            raise DataError(f"{path} is damaged: get it again", "encoder-damaged") from None
        tensors += len(shapes)
        numbers += sum(map(math.prod, shapes))
    return tensors, numbers


def _check_counts(folder: Path, config: Any, tensors: int, numbers: int, key: str = "") -> None:
    """Refuse counts that the weights cannot have, before a model is made of them."""
    if isinstance(config, dict):
        for name, item in config.items():
            _check_counts(folder, item, tensors, numbers, name)
        return
    listed = config if isinstance(config, list) else [config]
    integers = [item for item in listed if type(item) is int]
    total = sum(map(abs, integers))
    if (_REPEATED.search(key) and total > tensors) or max(map(abs, integers), default=0) > numbers:
        raise DataError(
            f"{folder}: config.json says {key} = {str(config)[:40]}, and the weights have "
            f"{tensors:,} tensors: get both again",
            "encoder-damaged",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    check_ordinary(path)
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path.parent} has no {path.name}: give a folder as save_pretrained writes it"
        ) from None
    except (OSError, ValueError):
        raise DataError(f"{path} is damaged or not JSON") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged or not JSON")
    return value


def preparation(folder: Path | None, usual: Normalization) -> tuple[Normalization, dict[str, Any]]:
    """Return how a folder's ``preprocessor_config.json`` normalizes images, or the usual way, and
    its content.
    """
    path = None if folder is None else folder / "preprocessor_config.json"
    config = read_json(path) if path is not None and path.is_file() else {}
    _check_preparation(folder, config)
    # Bytes come in as numbers in [0, 1]; a model may want another scale of them.
    unit = 255.0
    if config.get("do_rescale", True):
        unit *= _numbers(folder, config, "rescale_factor", (1 / 255,), positive=True)[0]
    if not config.get("do_normalize", True):
        usual = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        config = {key: value for key, value in config.items() if not key.startswith("image_")}
    mean = _numbers(folder, config, "image_mean", usual[0])
    deviation = _numbers(folder, config, "image_std", usual[1], positive=True)
    if abs(unit - 1) < 1e-6:
        return (mean, deviation), config
    return (tuple(m / unit for m in mean), tuple(d / unit for d in deviation)), config


def _numbers(
    folder: Path | None,
    config: dict[str, Any],
    key: str,
    usual: tuple[float, ...],
    positive: bool = False,
) -> tuple[float, ...]:
    """Return as many numbers of a configuration as usual; one alone may be without a list."""
    value = config.get(key)
    if value is None or value == []:
        return usual
    numbers = value if isinstance(value, list) else [value] * len(usual)
    right = len(numbers) == len(usual) and all(
        type(number) in (int, float) and abs(number) < _LARGEST and (number > 0 or not positive)
        for number in numbers
    )
    if not right:
        kind = "a positive number" if positive else "a number"
        raise DataError(
            f"{folder} states {key} = {str(value)[:40]} in preprocessor_config.json: give {kind} "
            f"{'for each of three channels' if len(usual) > 1 else 'there'}, or get it again",
            "encoder-damaged",
        )
    return tuple(map(float, numbers))


def resampling(folder: Path, config: dict[str, Any]) -> Resize:
    """Return how the content of a ``preprocessor_config.json`` says that images are resized: by the
    number that Pillow has for it, or as the class that it names does.
    """
    stated = config.get("resample")
    if stated is None:
        return "bilinear" if _prepared_by(config) in _BILINEAR else "bicubic"
    if not isinstance(stated, int) or stated not in _RESAMPLES:
        raise DataError(
            f"{folder} resizes images by Pillow's filter {stated!r}, and known are "
            f"{', '.join(f'{number} ({name})' for number, name in _RESAMPLES.items())}: choose one "
            "with encoder.resize",
            "encoder-preparation",
        )
    return _RESAMPLES[stated]


def _prepared_by(config: dict[str, Any]) -> str:
    """Return the class that prepares images, without the end of its name."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    return re.sub("(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", name)


def _check_preparation(folder: Path | None, config: dict[str, Any]) -> None:
    """Refuse a preparation that is more than resizing, scaling and normalizing."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    kind = _prepared_by(config)
    if (kind and kind not in _PREPARED) or config.get("auto_map"):
        raise DataError(
            f"{folder} prepares images with {name or 'code of its own'}, which is not known here "
            f"(known: {', '.join(_PREPARED)}): name other weights, or encode the images yourself "
            "and give features.npz",
            "encoder-preparation",
        )


def model_files(folder: Path) -> list[Path]:
    """Return what a model in a folder is made of: configuration and weights."""
    prepared = folder / "preprocessor_config.json"
    return [
        folder / "config.json",
        *([prepared] if prepared.is_file() else []),
        *weight_files(folder),
    ]


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model."""
    files = sorted(folder.glob("model*.safetensors"))
    if files:
        return files
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    why = (
        f": {pickles[0]} may run code when it is loaded, save it as safetensors" if pickles else ""
    )
    raise DataError(f"{folder} has no weights (model.safetensors){why}", "encoder-weights")


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Raise a DataError that names the folder for what the library says of its content."""
    try:
        yield
    except (FedUnseenError, LateError):
        raise
    except Exception as error:  # a dozen classes of it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"{folder} cannot be used ({reason[0].rstrip('.')}): get it again, or name other "
            "weights",
            "encoder-damaged",
        ) from None


def projection(config: dict[str, Any]) -> dict[str, int]:
    """Return the width of the space of a model of images and texts, as an option for one of its
    parts, whose own configuration may have another.
    """
    two = "text_config" in config or "vision_config" in config
    return {"projection_dim": int(config.get("projection_dim", 512))} if two else {}


def load_model(model: type[Any], folder: Path, ignore: tuple[str, ...] = (), **options: Any) -> Any:
    """Load a ``transformers`` model class from a folder, in float32, ready for evaluation."""
    import torch

    weights = weight_files(folder)
    try:
        config, options = _configuration(model, folder, options)
        _check_numbers(model, folder, config, weights)
        loaded, info = model.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with our own sentence
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            **options,
        )
    except DataError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"{folder} cannot be loaded as {model.__name__}: {reason[0].rstrip('.')}",
            "encoder-damaged",
        ) from None
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(ignore))
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of the weights of {model.__name__}, such as "
            f"{missing[0]}",
            "encoder-damaged",
        )
    if info["mismatched_keys"]:
        name = min(key[0] for key in info["mismatched_keys"])
        raise DataError(
            f"{folder}: {name} has another shape among the weights than config.json says",
            "encoder-damaged",
        )
    return loaded.eval()


def _configuration(
    model: type[Any], folder: Path, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the configuration that the library makes of :func:`read_config`, and the options that
    are none of its. It reads files alone, so that it gets one.
    """
    from transformers import AutoConfig

    kind = getattr(model, "config_class", None) or AutoConfig
    with tempfile.TemporaryDirectory() as place:
        write_json(Path(place, "config.json"), read_config(folder))
        made: tuple[Any, dict[str, Any]] = kind.from_pretrained(
            place, return_unused_kwargs=True, local_files_only=True, **options
        )
    return made


def _check_numbers(model: type[Any], folder: Path, config: Any, weights: Sequence[Path]) -> None:
    """Refuse a model that is far larger than its weights, before it takes memory."""
    import torch

    make = getattr(model, "from_config", model)
    with torch.device("meta"), torch.no_grad():
        skeleton = make(config)
    numbers = sum(part.numel() for part in (*skeleton.parameters(), *skeleton.buffers()))
    _, stored = _size_of(weights)
    if numbers > 2 * stored + _ALLOWED:
        raise DataError(
            f"{folder}: config.json describes a model of {numbers:,} numbers, and its weights have "
            f"{stored:,}: get both again",
            "encoder-damaged",
        )
