"""Tensors on disk come back as they were, and their room is used again."""

import errno
import gc
import os
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedunseen.core import tensor_store
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import under
from fedunseen.core.tensor_store import TensorStore, read_records, write_models, write_records

PARAMS = {
    "w": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
    "none": torch.zeros(0, 4),
    "count": torch.tensor(7),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
}
MORE = {**PARAMS, "bias": torch.tensor([9.0, -1.0]), "number": torch.tensor(0.25)}


def same(found, expected):
    torch.testing.assert_close(
        dict(found), expected, rtol=0, atol=0
    )  # names, types, shapes and values


@pytest.mark.parametrize("types", [["w", "bias", "number"], ["half"], ["none"], list(PARAMS)])
def test_tensors_come_back_one_by_one_or_at_once_and_a_change_of_what_was_read_changes_nothing(
    types,
):
    store, put = TensorStore(), {name: MORE[name] + 1 for name in types}
    first, kept = store.put(PARAMS), store.put(put)
    first["w"].zero_()
    same(first, PARAMS)
    with pytest.raises(KeyError):
        first["another"]
    read = dict(kept.items())
    assert list(read) == types
    same(read, put)
    for value in read.values():
        value.zero_()
    same(kept, put)


@pytest.mark.parametrize("types", [["w", "bias"], list(PARAMS)])
def test_a_large_record_is_written_tensor_by_tensor_with_the_same_bytes(
    types, monkeypatch, tmp_path
):
    put = {name: MORE[name] for name in types}
    whole = TensorStore().put(put)
    monkeypatch.setattr(tensor_store, "_LARGE", 0)
    parts = TensorStore("cpu", tmp_path).put(put)
    assert (parts.record(), parts.layout) == (whole.record(), whole.layout)
    same(parts, put)


@pytest.mark.slow
def test_room_is_used_again_once_nobody_reads_it():
    store = TensorStore()
    kept = store.put({"w": torch.ones(3)})
    for i in range(10):
        store.put({"w": torch.full((3,), float(i))})
        gc.collect()
    assert os.fstat(store.file.fileno()).st_size == 2 * 12
    same(kept, {"w": torch.ones(3)})


@pytest.mark.parametrize("names", [["w", "bias"], ["half"], ["w", "double", "count"]])
def test_models_of_clients_are_written_one_at_a_time_as_safetensors_would(tmp_path, names):
    first = {name: MORE[name] for name in names}
    second = {name: MORE[name] * 3 for name in reversed(names)}
    write_models(tmp_path / "m.safetensors", [4, 11], [first, second])
    same(
        load_file(tmp_path / "m.safetensors"),
        under("client/4/", first) | under("client/11/", second),
    )


def test_records_go_to_a_file_and_back(tmp_path):
    store, twice = TensorStore(), {name: value * 2 for name, value in PARAMS.items()}
    write_records(tmp_path / "clients", {9: store.put(PARAMS), 2: store.put(twice)})
    found = read_records(tmp_path / "clients", TensorStore())
    assert list(found) == [9, 2]
    same(found[9], PARAMS)
    same(found[2], twice)
    assert load_file(tmp_path / "clients")["clients"].tolist() == [
        9,
        2,
    ]  # any reader of safetensors reads it


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        *(
            (layout, ".")
            for layout in (None, "null", "[]", '[["w", "save", [1]]]', '[["w"]]', "[1]", "no json")
        ),
        ('[["w", "float32", [2]]]', "not as long as it says"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(tmp_path, layout, why):
    tensors = {"clients": torch.tensor([1]), "records": torch.zeros(1, 4, dtype=torch.uint8)}
    save_file(tensors, tmp_path / "clients", None if layout is None else {"layout": layout})
    with pytest.raises(ValueError, match=why):
        read_records(tmp_path / "clients", TensorStore())


def test_a_full_disk_is_one_sentence(monkeypatch):
    monkeypatch.setattr(
        os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(FedUnseenError, match=r"No space left on device\): make room there"):
        TensorStore().put(PARAMS)
