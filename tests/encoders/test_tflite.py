"""The quantized encoder: on a real MobileNetV2 and real photos."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fedunseen.core import array_cache as cache
from fedunseen.core.errors import DataError, ExperimentError, MissingDependencyError
from fedunseen.encoders.tflite import TFLite, TFLiteSettings, _find_tensors
from refusals import message_of

pytest.importorskip("ai_edge_litert")


@pytest.fixture
def mobilenet(real_data):
    return real_data / "mobilenet_v2" / "tf2_mobilenet_v2_1.0_224_ptq.tflite"


@pytest.fixture
def apples(real_data):
    """The first 80 of CIFAR-100's apples, (80, 3, 32, 32)."""
    with Image.open(real_data / "cifar100" / "00_apple.webp") as file:
        tiles = np.asarray(file.convert("RGB"))
    tiles = tiles.reshape(tiles.shape[0] // 32, 32, -1, 32, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, 3, 32, 32)[:80])


def encoder(model, images, output="vectors", **settings):
    return TFLite(TFLiteSettings(model=model, **settings), images.shape[1:], output)


def test_vectors_are_the_means_of_maps(mobilenet, apples):
    maps = encoder(mobilenet, apples, "maps").encode(apples[:8])
    vectors = encoder(mobilenet, apples).encode(apples[:8])
    assert (maps.shape, maps.dtype) == ((8, 1280, 7, 7), np.float16)
    assert (vectors.shape, vectors.dtype) == ((8, 1280), np.float32)
    step = np.diff(np.unique(vectors)).min()  # of the quantized vectors, which end at 255 steps
    means = maps.astype(np.float32).mean((2, 3))
    assert step == pytest.approx(0.01908, abs=1e-5)
    assert np.abs(vectors - np.minimum(means, 255 * step)).max() < 0.51 * step + 1e-3
    assert means.min() >= 0
    assert maps.max() == pytest.approx(6, abs=0.01)  # ReLU6


@pytest.mark.slow
def test_features_are_those_that_others_computed(real_data, mobilenet, apples):
    """Those of the benchmark CIFAR100_MBV2, made elsewhere with a bicubic resize, in bytes."""
    import scipy.io

    published = scipy.io.loadmat(real_data / "xlsa17" / "CIFAR100_MBV2" / "res101.mat")[
        "features"
    ].T[:20]
    published = published.astype(np.float32) * 0.01908

    def cosines(resize):
        own = encoder(mobilenet, apples, resize=resize).encode(apples[:20])
        return (
            (own * published).sum(1)
            / np.linalg.norm(own, axis=1)
            / np.linalg.norm(published, axis=1)
        )

    bicubic = cosines("bicubic")
    assert bicubic.mean() > 0.98
    assert (bicubic > cosines("bilinear")).all()


@pytest.mark.slow
def test_threads_and_the_cache_change_nothing(
    mobilenet, apples, own_cache, two_threads, monkeypatch
):
    monkeypatch.setattr(cache, "CHUNK", 8)
    alone = np.concatenate([encoder(mobilenet, apples).encode(apples[i : i + 1]) for i in range(4)])
    torch.set_num_threads(3)  # the fixture sets it back
    together = encoder(mobilenet, apples).encode(apples[:12])
    assert isinstance(together, np.memmap)
    assert np.array_equal(alone, together[:4])
    (path,) = (own_cache / "features").iterdir()
    made = path.stat().st_mtime_ns
    assert np.array_equal(encoder(mobilenet, apples).encode(apples[:12]), together)
    assert path.stat().st_mtime_ns == made
    encoder(mobilenet, apples, resize="bicubic").encode(apples[:12])
    assert len(list((own_cache / "features").iterdir())) == 2


def test_bad_models_are_named(tmp_path, monkeypatch):
    def message(model, error=DataError):
        return message_of(TFLite, TFLiteSettings(model=model), (3, 32, 32), "vectors", error=error)

    assert message(None, ExperimentError) == "encoder.model is missing: name the .tflite file"
    path = tmp_path / "model.tflite"
    assert message(path) == f"{path} is missing: encoder.model has to name a .tflite file"
    path.write_bytes(b"no model")
    assert message(path) == f"{path} is not a TFLite model, or a damaged one"
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    assert message(path, MissingDependencyError).startswith(
        "the encoder 'tflite' needs ai-edge-litert: pip install"
    )


def interpreter(shapes, operations, kind=np.uint8):
    """A model's graph as the library describes it."""
    details = [
        {"index": i, "shape": np.array(shape), "dtype": np.int8} for i, shape in enumerate(shapes)
    ]
    details[0]["dtype"] = kind
    graph = [
        dict(zip(("op_name", "inputs", "outputs"), operation, strict=True))
        for operation in operations
    ]
    return SimpleNamespace(
        get_input_details=lambda: details[:1], get_tensor_details=lambda: details, _get_ops_details=lambda: graph,
    )  # fmt: skip


def test_the_last_pooling_is_found_by_the_graph(tmp_path):
    shapes = [(1, 8, 8, 3), (1, 4, 4, 6), (1, 1, 1, 6), (1, 4, 4, 6), (1, 6), (1, 10)]
    operations = [
        ("CONV_2D", [0], [1]), ("MEAN", [1], [2]),  # of a squeeze-and-excitation
        ("MUL", [1, 2], [3]), ("MEAN", [3], [4]), ("FULLY_CONNECTED", [4], [5]), ("DELEGATE", [0], [5]),
    ]  # fmt: skip
    assert _find_tensors(interpreter(shapes, operations), tmp_path) == (0, 3, 4)
    with pytest.raises(
        DataError,
        match=r"pools no map to a vector: its features cannot be separated from the rest$",
    ):
        _find_tensors(interpreter(shapes, operations[:1] + operations[4:]), tmp_path)
    with pytest.raises(
        DataError, match=r"takes float32 \(1, 8, 8, 3\), not the bytes of one image"
    ):
        _find_tensors(interpreter(shapes, operations, np.float32), tmp_path)
