"""Text to vectors: semantics of classes that only have a name, and word vectors of attributes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.array_cache import Progress, cached_arrays, files_digest
from fedunseen.core.deadline import check_deadline
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import check_ordinary
from fedunseen.encoders.hub import (
    OTHER_TYPE,
    is_image_model,
    load_model,
    naming,
    projection,
    read_config,
    require_transformers,
    weight_files,
    weights_folder,
)
from fedunseen.encoders.sentences import Sentence, pooled, pooling_files, sentence_of
from fedunseen.encoders.word_vectors import minilm_folder, read_vectors

_AT_ONCE = 64  # texts
_LONGEST = 512  # tokens, where a model does not say how many it takes
VECTORS = "vectors:"


def embed_texts(texts: Sequence[str], encoder: str, apart: bool = False) -> NDArray[np.float32]:
    """Turn texts into vectors; what a model computes is kept in the cache folder.

    With ``apart`` a text's bits do not depend on the texts beside it, whose padding may round
    differently: samples need that, so that sums are the same for any partition.
    """
    if encoder.startswith(VECTORS):
        return _sum_of_words(texts, Path(encoder.removeprefix(VECTORS)).expanduser())
    folder = _folder(encoder)
    depends: dict[str, Any] = {"weights": files_digest(_files_in(folder)), "texts": list(texts)}
    depends |= {"apart": True} if apart else {}
    at_once = 1 if apart else _AT_ONCE
    return cached_arrays(
        "texts", depends, ("vectors",), lambda: {"vectors": _by_model(texts, folder, at_once)}
    )["vectors"]


def text_files(encoder: str) -> list[Path]:
    """Return the files that a text encoder is made of, which lie in one folder or in folders of it;
    none of ``minilm``, a package.
    """
    if encoder.startswith(VECTORS):
        return [Path(encoder.removeprefix(VECTORS)).expanduser()]
    return [] if encoder == "minilm" else sorted(_files_in(_folder(encoder)))


def text_encoder_at(place: Path, encoder: str) -> str:
    """Return how ``embed_texts`` names an encoder that lies elsewhere."""
    if encoder.startswith(VECTORS):
        return f"{VECTORS}{place / Path(encoder.removeprefix(VECTORS)).name}"
    return str(place)


def _folder(encoder: str) -> Path:
    return (
        minilm_folder("the text encoder")
        if encoder == "minilm"
        else weights_folder(encoder, "the text encoder")
    )


def _files_in(folder: Path) -> list[Path]:
    return [
        *weight_files(folder),
        *folder.glob("*.json"),
        *folder.glob("*.txt"),
        *folder.glob("*.model"),
        *pooling_files(folder),
    ]


def clean_class_name(name: str) -> str:
    """Return a class's name in plain words: ``002.Laysan_Albatross`` is "Laysan Albatross"."""
    return " ".join(re.sub(r"[+_\s]+", " ", re.sub(r"^\d+\.", "", name)).split())


def class_prompts(names: Sequence[str], template: str = "a photo of a {}.") -> list[str]:
    """Return a sentence for each class."""
    return [template.replace("{}", clean_class_name(name)) for name in names]


def embed_classes(
    names: Sequence[str],
    encoder: str,
    prompt: str = "a photo of a {class}.",
    attributes: Sequence[Sequence[str]] | None = None,
) -> NDArray[np.float32]:
    """Return what a text encoder makes of classes (FZSL section 3.3), of unit length."""
    if "{class}" not in prompt:
        raise ExperimentError(
            f"method.prompt = {prompt!r} names no class: write {{class}} where its name belongs"
        )
    for place in ("{class}", "{attribute}"):  # long names, often enough, take gigabytes
        if prompt.count(place) > 1:
            raise ExperimentError(f"method.prompt has {place} more than once: write it once")
    clean: dict[str, tuple[str, str]] = {}
    for name in names:
        words = clean_class_name(name)
        if not re.search(r"\w", words):
            raise DataError(
                f"the class {name!r} has no word in its name for a text encoder: rename it"
            )
        if (same := clean.get(words.lower())) is not None:
            raise DataError(
                f"the classes {same[0]!r} and {name!r} are both {words!r} to a text encoder: "
                "rename one"
            )
        clean[words.lower()] = name, words
    sentences = [prompt.replace("{class}", words) for _, words in clean.values()]
    if attributes is not None:
        sentences = [
            sentence.replace("{attribute}", plain_words(attribute))
            for sentence, attributes_of_class in zip(sentences, attributes, strict=True)
            for attribute in attributes_of_class
        ]
    each = embed_texts(sentences, encoder)
    vectors = each.reshape(len(names), -1, each.shape[1]).mean(axis=1)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def plain_words(text: str) -> str:
    """Return an attribute's name in words: ``has_bill_shape::hooked`` is "has bill shape
    hooked".
    """
    return " ".join(re.sub(r"::|[-_+]", " ", text).split())


class _Tower(NamedTuple):
    """The text part of a model of images and texts: its class of the library, and which of its
    outputs lies where images do.
    """

    model: str
    output: str
    padded: bool  # trained on texts of one length, whose padding it sees


_CLIP = _Tower("CLIPTextModelWithProjection", "text_embeds", False)
_META = _Tower("MetaClip2TextModelWithProjection", "text_embeds", False)
_SIGLIP = _Tower("SiglipTextModel", "pooler_output", True)
_TOWERS = {
    "clip": _CLIP,
    "clip_text_model": _CLIP,
    "metaclip_2": _META,
    "metaclip_2_text_model": _META,
    "siglip": _SIGLIP,
    "siglip_text_model": _SIGLIP,
    "siglip2": _SIGLIP._replace(model="Siglip2TextModel"),
    "siglip2_text_model": _SIGLIP._replace(model="Siglip2TextModel"),
    "aimv2": _Tower("Aimv2Model", "pooler_output", False),
}
"""``model_type`` -> its text part. Other models are read as sentence encoders."""


def _text_model(folder: Path) -> tuple[Any, _Tower | None]:
    """Return the model of a folder, and what it is where it is the text part of one of images and
    texts.
    """
    require_transformers("a text encoder")
    import transformers

    config = read_config(folder)
    if is_image_model(config):
        raise DataError(
            f"{folder} holds a model of pictures ({config.get('model_type')}), and a text encoder "
            "is needed: name it in encoder.weights, and a model of texts here",
            OTHER_TYPE,
        )
    tower = _TOWERS.get(str(config.get("model_type")))
    class_of = getattr(transformers, tower.model if tower else "AutoModel")
    width = projection(config) if tower is not None and tower.output == "text_embeds" else {}
    return load_model(class_of, folder, ignore=("pooler.",), **width), tower


def _by_model(texts: Sequence[str], folder: Path, at_once: int) -> NDArray[np.float32]:
    model, tower = _text_model(folder)
    tokenizer = _tokenizer(folder)
    sentence = Sentence(unit=True) if tower else sentence_of(folder)
    limit = min(tokenizer.model_max_length, sentence.limit or _LONGEST)
    padding: Any = True
    if tower is not None and tower.padded:
        text_config = getattr(model.config, "text_config", model.config)
        padding = "max_length"
        limit = min(limit, int(text_config.max_position_embeddings))
    out = []
    progress = Progress("reading texts", len(texts)) if len(texts) > at_once else None
    with naming(folder), torch.inference_mode():
        for start in range(0, len(texts), at_once):
            check_deadline()
            part = [
                sentence.prompt + (text.lower() if sentence.lower else text)
                for text in texts[start : start + at_once]
            ]
            tokens = tokenizer(
                part, padding=padding, truncation=True, max_length=limit, return_tensors="pt"
            )
            vectors = _vectors(model, tokens, tower, sentence)
            if sentence.unit:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            out.append(vectors.numpy())
            if progress is not None:
                progress.add(len(part))
    return np.concatenate(out).astype(np.float32)


def _tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder."""
    from transformers import AutoTokenizer

    for path in folder.iterdir():
        check_ordinary(path)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # any fault in the files of a dozen kinds of tokenizers
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"{folder} has no tokenizer that can be loaded: {reason[0].rstrip('.')}"
        ) from None


def _vectors(model: Any, tokens: Any, tower: _Tower | None, sentence: Sentence) -> torch.Tensor:
    """Return a vector (n, d) for each text: in the space of images, or of its tokens."""
    if tower is None:
        states = model(**tokens).last_hidden_state
        return pooled(states, tokens["attention_mask"], sentence.pooling)
    known = {"input_ids": tokens["input_ids"]}
    if not tower.padded:
        known["attention_mask"] = tokens["attention_mask"]
    outputs = model.get_text_features(**known) if tower.model == "Aimv2Model" else model(**known)
    in_space: torch.Tensor = getattr(outputs, tower.output)
    return in_space


def _sum_of_words(texts: Sequence[str], path: Path) -> NDArray[np.float32]:
    lists = [plain_words(re.sub(r"[^\w\s+:'-]", " ", text)).split() for text in texts]
    wanted = {form for words in lists for word in words for form in (word, word.lower())}
    places, table = read_vectors(path, wanted, np.float32)
    out = []
    for text, words in zip(texts, lists, strict=True):
        word_places = [
            places[form]
            for word in words
            if (form := word if word in places else word.lower()) in places
        ]
        if not word_places:
            raise DataError(
                f"{path} has no vector for {text!r} (looked for: {', '.join(words) or 'nothing'})"
            )
        out.append(table[word_places].sum(axis=0))
    return np.array(out, dtype=np.float32)
