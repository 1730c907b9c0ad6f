import io
import re
import zipfile

import numpy as np
import pytest

from fedunseen.core import arrays
from fedunseen.core.arrays import array_names, load_arrays
from fedunseen.core.memory import Mapped
from fedunseen.data import read_features
from refusals import message_of


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, np.int32])
def test_reads_numpy_files(tmp_path, dtype):
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", features=rows, labels=np.arange(4))
    np.savez_compressed(tmp_path / "c.npz", whatever=rows)
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(read_features(path, 3), rows.astype(np.float32), strict=True)


@pytest.mark.parametrize("header", ["", "x,y\n"])
def test_reads_csv_with_and_without_header(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + "1,2.5\n-3e2,4\n")
    assert read_features(tmp_path / "a.csv", 2).tolist() == [[1, 2.5], [-300, 4]]


def header(shape, descr):
    """The first bytes of a ``.npy`` file, whatever follows them."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def save(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", None, "{path} is missing"),
        ("a.npyy", b"", "{path}: unknown kind of feature file '.npyy': did you mean '.npy'? "
                        "(known: .csv, .npy, .npz)"),
        ("a.npy", np.ones((2, 4)), "{path}: its vectors have 4 numbers, but the model takes 3"),
        ("a.npy", np.array([[1, np.nan, 2], [1, 2, 3]]), "{path}: 1 of 2 vectors hold NaN or "
                                                         "infinity"),
        ("a.npy", np.array([[1, 1, 2], [1, -1e200, 3]]), "{path}: the number -1e+200 of sample 1 "
                                                         "is too large"),
        ("a.csv", b"1,2,3\n1,2,1e39\n", "{path}, line 2: '1e39' is too large: float32 holds at "
                                        "most 3.4e38"),
        ("a.npy", np.ones((2, 3, 1)), "{path}: the features have the shape (2, 3, 1), not "
                                      "(vectors, numbers)"),
        ("a.npy", np.array([["1", "2", "3"]]), "{path}: the features are of type <U1, not real "
                                               "numbers"),
        ("a.npy", np.array([[1, None, 3]]), "{path} holds Python objects, which are never loaded: "
                                            "save plain numbers"),
        ("a.npz", {"features": np.array([[1, None, 3]])}, "{path} holds Python objects, which are "
                                                          "never loaded: save"),
        ("a.npz", {"x": np.ones(3), "y": np.ones(3)}, "{path} has no array 'features' (it has: x, "
                                                      "y)"),
        ("a.npy", b"\x93NUMPY\x01\x00v", "{path} is damaged or not a NumPy file"),
        ("a.npz", b"", "{path} is damaged or not a NumPy file"),
        ("a.npy", header((2**42, 3), "<f4") + b"123", "{path} is damaged: an array of shape "
                                                      "(4398046511104, 3) and"),
        ("a.npy", header((-1, 3), "<f4") + bytes(12), "{path} is damaged: an array of shape (-1, "
                                                      "3) and type float32"),
        ("a.csv", b"1,2,x\n", "{path}, line 1: 'x' is not a number"),
        ("a.csv", b'1,2,"0,5"\n', "{path}, line 1: '0,5' has a comma where a number has a point: "
                                  "write 0.5"),
        ("a.csv", b"1;2;0,5\n", "{path} separates its cells by semicolons: save it with commas "
                                "between them, points"),
        ("a.csv", b"1,2,3\n1,inf,2\n", "{path}, line 2: 'inf' is not a finite number"),
        ("a.csv", b"1,2,3\n1,2\n", "{path}, line 2: 2 cells, but the first line has 3"),
        ("a.csv", b"x,y,z\n", "{path} has a header, but no vector"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    save(path, content)
    assert message_of(read_features, path, 3).startswith(message.format(path=path))


def test_a_cut_numpy_file_is_refused_wherever_it_is_cut(tmp_path):
    for name, content in (("a.npz", {"features": np.ones((20, 3))}), ("a.npy", np.ones((20, 3)))):
        path = tmp_path / name
        save(path, content)
        whole = path.read_bytes()
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            said = message_of(read_features, path, 3)
            assert re.search(
                r"is damaged( or not a NumPy file: save it again$|: an array of shape \(20, 3\))",
                said,
            )


def test_an_array_that_nobody_needs_is_not_read(tmp_path):
    """It declares 29 TiB, which would be refused if it were asked for."""
    path = tmp_path / "a.npz"
    np.savez(path, features=np.ones((2, 3)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("huge.npy", header((2**43,), "<f4") + b"123")
    assert read_features(path, 3).tolist() == [[1.0] * 3] * 2
    assert (set(load_arrays(path, ["features", "absent"])), array_names(path)) == (
        {"features"},
        ["features", "huge"],
    )
    said = message_of(load_arrays, path, ["huge"])
    assert said.startswith(
        f"{path} is damaged: an array of shape (8796093022208,) and type float32 "
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_without_compression_stay_on_disk(tmp_path, monkeypatch, order):
    monkeypatch.setattr(arrays, "MAPPED", 600)
    rows = np.asarray(np.random.default_rng(0).normal(size=(40, 7)).astype(np.float16), order=order)
    few, path = np.arange(5), tmp_path / "a.npz"
    for save, kind in ((np.savez, Mapped), (np.savez_compressed, np.ndarray)):
        save(path, few=few, features=rows, labels=few)
        found = load_arrays(path, ["features", "labels"])
        np.testing.assert_equal(found, {"features": rows, "labels": few})
        assert [type(array) for array in found.values()] == [kind, np.ndarray]
        assert found["features"].dtype == np.float16
        found["features"][0, 0] = 3
        assert np.array_equal(
            load_arrays(path, ["features"])["features"], rows
        )  # the file is the same
