"""Sentence encoders as the hub keeps them: pooled as the library that saved them pools."""

import json
import os
import shutil

import numpy as np
import pytest

from fedunseen.core.array_cache import shown
from fedunseen.core.errors import DataError
from fedunseen.encoders.sentences import sentence_of
from fedunseen.encoders.text import embed_texts, text_encoder_at, text_files
from topics import TOPICS, save_sentence_encoder

pytest.importorskip("transformers")
TEXTS = [*TOPICS.values(), "a goal", "Soil, and The Queen"]


def by_the_library(folder):
    """Return what the library itself makes of the texts."""
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("unit", [True, False])
def test_vectors_are_the_librarys(tmp_path, pooling, unit):
    folder = save_sentence_encoder(tmp_path / "model", pooling, unit, max_seq_length=8)
    for apart in (False, True):
        found = embed_texts(TEXTS, str(folder), apart=apart)
        np.testing.assert_allclose(found, by_the_library(folder), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_the_library_saves_now_is_read(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    save_sentence_encoder(tmp_path / "old", "cls", do_lower_case=True)
    whole = library.SentenceTransformer(str(tmp_path / "old"), device="cpu")
    whole.prompts, whole.default_prompt_name = {"query": "number 3: "}, "query"
    whole.save(str(tmp_path / "new"))
    assert sentence_of(tmp_path / "new")[:2] == ("cls", True)
    found = embed_texts(TEXTS, str(tmp_path / "new"))
    np.testing.assert_allclose(found, by_the_library(tmp_path / "new"), rtol=1e-4, atol=1e-5)
    assert not np.allclose(found, embed_texts(TEXTS, str(tmp_path / "old")), atol=1e-2)


def test_a_pooling_changes_the_vectors_and_is_a_file_of_the_encoder(tmp_path):
    folders = [save_sentence_encoder(tmp_path / way, way) for way in ("mean", "cls", "max")]
    first, second, third = (embed_texts(TEXTS, str(folder)) for folder in folders)
    assert np.abs(first - second).max() > 0.1 < np.abs(second - third).max()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    files = text_files(str(folders[1]))
    assert files[0] == folders[1] / "1_Pooling" / "config.json"
    for path in files:
        copy = tmp_path / "copy" / path.relative_to(folders[1])
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    moved = text_encoder_at(tmp_path / "copy", str(folders[1]))
    np.testing.assert_array_equal(embed_texts(TEXTS, moved), second)


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("modules.json", b"[{]", "encoder-damaged"),
        ("modules.json", b'[{"type": "a.Pooling", "path": "../.."}]', "encoder-damaged"),
        ("modules.json", b'[{"type": 3, "path": ""}]', "encoder-damaged"),
        ("modules.json", b'[{"type": "a.Transformer", "path": ""}]', "encoder-pooling"),
        ("modules.json", b'[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": '
         b'"1_Pooling"}, {"type": "a.Dense", "path": "2_Dense"}]', "encoder-pooling"),
        ("1_Pooling/config.json", b'{"pooling_mode_weightedmean_tokens": true}', "encoder-pooling"),
        ("1_Pooling/config.json", b'{"pooling_mode": ["cls", "mean"]}', "encoder-pooling"),
        ("1_Pooling/config.json", b"", "data"),
        ("1_Pooling/config.json", None, "data"),
        ("model.safetensors", b"short", "encoder-damaged"),
        ("config.json", b'{"model_type": "t5"}', "encoder-damaged"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_is_refused_by_its_name(tmp_path, file, content, code):
    folder = save_sentence_encoder(tmp_path / "model")
    os.unlink(folder / file)
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(DataError) as caught:
        embed_texts(["a goal"], str(folder))
    assert caught.value.code == code
    assert str(folder) in str(caught.value)


def test_the_mean_without_a_word_of_it(tmp_path):
    folder = save_sentence_encoder(tmp_path / "model", "cls")
    os.unlink(folder / "modules.json")
    stated = save_sentence_encoder(tmp_path / "mean", "mean", unit=False)
    np.testing.assert_array_equal(embed_texts(TEXTS, str(folder)), embed_texts(TEXTS, str(stated)))
    assert json.loads((stated / "modules.json").read_text())[1]["path"] == "1_Pooling"


def test_how_many_texts_are_read_is_shown(tmp_path, own_cache):
    folder, seen = save_sentence_encoder(tmp_path / "model"), []
    before = shown.set(lambda *what: seen.append(what))
    try:
        embed_texts(TEXTS, str(folder), apart=True)
        assert seen == [("reading texts", n, len(TEXTS)) for n in range(len(TEXTS) + 1)]
        del seen[:]
        embed_texts(TEXTS[:1], str(folder), apart=True)  # one piece of work
        embed_texts(TEXTS, str(folder), apart=True)  # of the cache
        assert seen == []
    finally:
        shown.reset(before)
