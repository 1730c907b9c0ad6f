import re

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data import read_features


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, np.int32])
def test_reads_numpy_files(tmp_path, dtype):
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", features=rows, labels=np.arange(4))
    np.savez_compressed(tmp_path / "c.npz", whatever=rows)
    for name in ("a.npy", "b.npz", "c.npz"):
        read = read_features(tmp_path / name, 3)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, rows)


def test_one_vector_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3.0))
    assert read_features(tmp_path / "a.npy", 3).shape == (1, 3)
    assert read_features(tmp_path / "a.npy").shape == (1, 3)


@pytest.mark.parametrize("header", ["", "x,y\n"])
def test_reads_csv_with_and_without_header(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + "1,2.5\n-3e2,4\n")
    assert read_features(tmp_path / "a.csv", 2).tolist() == [[1, 2.5], [-300, 4]]


def save(path, content):
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", None, "{path} is missing"),
        ("a.csv", None, "{path} is missing"),
        (
            "a.npyy",
            "",
            "{path}: unknown kind of feature file '.npyy': did you mean '.npy'? (known: .csv, .npy, .npz)",
        ),
        ("a", "", "{path}: unknown kind of feature file 'a' (known: .csv, .npy, .npz)"),
        ("a.npy", np.ones((2, 4)), "{path}: its vectors have 4 numbers, but the model takes 3"),
        ("a.npy", np.array([[1, np.nan, 2], [1, 2, 3]]), "{path}: 1 of 2 vectors hold NaN or infinity"),
        ("a.npy", np.full((1, 3), 1e100), "{path}: 1 of 1 vectors hold NaN or infinity"),
        (
            "a.npy",
            np.ones((2, 3, 1)),
            "{path}: the features have the shape (2, 3, 1), not (vectors, numbers)",
        ),
        ("a.npy", np.ones((0, 3)), "{path}: the features have the shape (0, 3), not (vectors, numbers)"),
        ("a.npy", np.array([["1", "2", "3"]]), "{path}: the features are of type <U1, not real numbers"),
        (
            "a.npy",
            np.array([[1, None, 3]]),
            "{path} holds Python objects, which are never loaded: save plain numbers or text",
        ),
        (
            "a.npz",
            {"features": np.array([[1, None, 3]])},
            "{path} holds Python objects, which are never loaded: save plain numbers or text",
        ),
        ("a.npz", {"x": np.ones(3), "y": np.ones(3)}, "{path} has no array 'features' (it has: x, y)"),
        ("a.npz", {}, "{path} has no array 'features' (it has: none)"),
        ("a.npy", b"\x93NUMPY\x01\x00v", "{path} is damaged or not a NumPy file"),
        ("a.npy", "not an array", "{path} is damaged or not a NumPy file"),
        ("a.npz", b"PK\x03\x04cut", "{path} is damaged or not a NumPy file"),
        ("a.npz", b"", "{path} is damaged or not a NumPy file"),
        ("a.csv", "1,2,x\n", "{path}, line 1: 'x' is not a number"),
        ("a.csv", "1,2,3\n1,inf,2\n", "{path}, line 2: 'inf' is not a finite number"),
        ("a.csv", "1,2,3\n1,2\n", "{path}, line 2: 2 cells, but the first line has 3"),
        ("a.csv", "x,y,z\n", "{path} has a header, but no vector"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    save(path, content)
    with pytest.raises(DataError, match=f"^{re.escape(message.format(path=path))}$"):
        read_features(path, 3)


def test_a_cut_numpy_file_is_refused_wherever_it_is_cut(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((20, 3)))
    np.save(tmp_path / "a.npy", np.ones((20, 3)))
    for name in ("a.npz", "a.npy"):
        whole = (tmp_path / name).read_bytes()
        path = tmp_path / f"cut{name[1:]}"
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            with pytest.raises(DataError, match=r"is damaged or not a NumPy file$"):
                read_features(path, 3)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects"):
        read_features(tmp_path / "a.npy")
