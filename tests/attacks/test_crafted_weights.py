"""A stranger's folder of weights: what its config.json may say, and what it may not."""

import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
import torch

from fedunseen.core.errors import DataError
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.columns import Column, Treatment
from fedunseen.data.io.tables import open_table
from fedunseen.encoders.text import embed_texts
from fedunseen.encoders.transformers import ViT, ViTSettings
from fedunseen.encoders.vision import Vision, VisionSettings
from fedunseen.pages.serve.model import _numbers

T = pytest.importorskip("transformers")
SHAPE = (3, 32, 32)
PICTURES = np.random.default_rng(0).integers(0, 256, (2, *SHAPE), dtype=np.uint8)
KINDS = {"vision": (Vision, VisionSettings), "vit": (ViT, ViTSettings)}
CODE = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = T.ViTConfig(**sizes, intermediate_size=24, image_size=32, patch_size=8)
    T.ViTModel(config).save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


def features(folder, name="vision"):
    kind, settings = KINDS[name]
    return kind(settings(name=name, weights=str(folder)), SHAPE, "vectors").encode(PICTURES)


def say(folder, **more):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("key", [*CODE, "experts_implementation", "transformers_weights"])
def test_names_of_code_and_of_other_weights_are_not_read(name, key, folder):
    expected = features(folder, name)
    say(folder, **{key: "owner/kernel@main"})
    if key == CODE[0]:  # the library would look for it
        with pytest.raises((ImportError, ValueError)):
            T.AutoModel.from_pretrained(folder, local_files_only=True)
    assert np.array_equal(features(folder, name), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize(
    "more",
    [
        {"num_hidden_layers": 100},
        {"num_hidden_layers": 10**9},
        {"hidden_size": 2**14, "num_attention_heads": 1},
        {"hidden_size": 2**40},
    ],
)
def test_a_model_that_its_weights_cannot_be_is_not_made(name, more, folder):
    say(folder, **more)
    tracemalloc.start()
    with pytest.raises(DataError) as refused:
        features(folder, name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.code == "encoder-damaged"
    assert peak < 2**26


@pytest.mark.parametrize("depths", [[1, 60], [10**9, 1]])
def test_stages_of_a_residual_network_are_counted(depths, tmp_path):
    config = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    T.ResNetModel(config).save_pretrained(tmp_path)
    say(tmp_path, depths=depths)
    with pytest.raises(DataError, match="depths"):
        features(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_pipe_is_not_waited_for(file, folder):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(DataError, match="is a pipe or a device"):
        features(folder)


def test_a_tokenizer_is_no_pipe(folder):
    shutil.rmtree(folder)
    T.BertModel(
        T.BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            vocab_size=9,
        )
    ).save_pretrained(folder)  # fmt: skip
    os.mkfifo(folder / "vocab.txt")
    with pytest.raises(DataError, match="is a pipe or a device"):
        embed_texts(["a zebra"], str(folder))


def test_models_of_another_library_are_not_made(folder):
    more = {"vocab_size": 9, "architecture": "hf_hub:owner/name"}
    (folder / "config.json").write_text(json.dumps({"model_type": "timm_wrapper"} | more))
    with pytest.raises(DataError) as refused:
        embed_texts(["a zebra"], str(folder))
    assert refused.value.code == "encoder-type"


def test_a_long_text_among_numbers_takes_no_memory():
    rows = [["x" * 200_000, *["y"] * 2000]]
    tracemalloc.start()
    with pytest.raises(DataError, match="give real numbers"):
        _numbers(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20  # as an array of texts it would be 1.5 GiB
    assert np.array_equal(_numbers([[1, 2.5], [True, 3]]), [[1, 2.5], [1, 3]])
    with pytest.raises(DataError, match="no float"):
        _numbers([[10**400]])


def test_a_long_name_of_a_class_is_refused_by_its_row(tmp_path):
    rows = [f"k{i % 4},{i}" for i in range(2000)]
    (tmp_path / "table.csv").write_text("\n".join(["label,a", *rows, "y" * 100_000 + ",1", ""]))
    with pytest.raises(DataError) as refused:
        list(
            Treatment((Column(name="a", kind="number", bounds=(0, 2000)),)).read(
                open_table(tmp_path / "table.csv"), "label"
            )
        )
    assert refused.value.code == "long-name"
    assert "line 2002, column 'label'" in str(refused.value)


def test_a_long_name_is_no_class():
    with pytest.raises(DataError) as refused:
        ClassSpace(("zebra", "x" * 1001), np.eye(2), ("a", "b"), [0], [], [1])
    assert refused.value.code == "long-name"
