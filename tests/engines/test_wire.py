"""Messages: what is packed comes back; whatever else arrives is refused in one sentence, and
nothing else is raised.
"""

import contextlib
import json
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from fedunseen.core.parameters import wire_size
from fedunseen.deploy.remote.wire import (
    Expected,
    WireError,
    pack,
    read_reply,
    reply_message,
    unpack,
)
from fedunseen.strategies import Reply
from refusals import message_of
from same import same

PARAMS = {"f.weight": torch.ones(3, 2), "f.bias": torch.zeros(3)}
EXPECTED = Expected(
    1, 4, PARAMS, frozenset(PARAMS), classes=20, notes=frozenset(["clean"]), counts=(2, 30)
)
LENGTHS = {"f.weight": 1.5, "f.bias": 0.5}
GOOD = Reply(
    1, {k: v + 0.5 for k, v in PARAMS.items()}, 2, 30, {"loss": 0.25}, LENGTHS, {"clean": 3.0}
)


def message(header=None, tensors=None, **changes):
    """Return a good reply's message with some of it replaced."""
    content, body = unpack(reply_message(GOOD, None, 4, 1.25))
    return pack(
        {**content, **changes} if header is None else header, body if tensors is None else tensors
    )


def update(weight=PARAMS["f.weight"], bias=PARAMS["f.bias"], **more):
    """Return a good reply's message with another update."""
    return message(tensors={"update/f.weight": weight, "update/f.bias": bias, **more})


def test_a_reply_comes_back():
    reply, state, seconds, forgot = read_reply(reply_message(GOOD, None, 4, 1.25), EXPECTED)
    assert (reply.client, reply.classes, reply.samples, seconds, state, forgot) == (
        1,
        2,
        30,
        1.25,
        {},
        False,
    )
    assert (reply.terms, reply.step_lengths, reply.notes) == (
        {"loss": 0.25},
        LENGTHS,
        {"clean": 3.0},
    )
    assert same(reply.update, GOOD.update)


def test_a_state_comes_back_where_it_is_asked_for():
    sent = reply_message(GOOD, {"own/c": torch.arange(4.0)}, 4, 0.0)
    state = read_reply(sent, replace(EXPECTED, state=True, counts=None))[1]
    assert torch.equal(state["own/c"], torch.arange(4.0))
    assert "tensors that no one asked for" in message_of(
        read_reply, sent, EXPECTED, error=WireError
    )


def test_a_tensor_of_two_names_travels_once_and_views_of_the_same_numbers_come_back():
    big, both = torch.rand(1000), torch.arange(6.0)
    views = {
        "a": both[:4],
        "b": both[2:],
        "c": both.view(2, 3).T,
        "params/w": big,
        "extras/start/w": big,
    }
    sent = pack({}, views)
    assert len(sent) < 2 * 4000
    assert same(unpack(sent)[1], views)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (message(tensors={"update/f.weight": torch.ones(3, 2)}), "its update lacks 'f.bias'"),
        (
            update(**{"update/g": torch.ones(1)}),
            "its update holds 'g', which is not a shared parameter",
        ),
        (
            update(weight=torch.ones(2, 3)),
            "'f.weight' of its update has the shape (2, 3), not (3, 2)",
        ),
        (
            update(bias=torch.ones(3).double()),
            "'f.bias' of its update is of type torch.float64, not torch.float32",
        ),
        (update(weight=torch.full((3, 2), torch.nan)), "the update is not finite"),
        (update(x=torch.ones(1)), "no one asked for"),
        (
            message(samples=31),
            "it claims 31 samples of 2 classes, after the party has joined with 30 samples",
        ),
        (message(classes=21, samples=99), "it claims 99 samples of 21 classes, and there are 20"),
        (message(classes=2, samples=1), "it claims 1 samples of 2 classes"),
        *(
            (message(samples=count), f"it claims {count} samples")
            for count in (-3, 1.5, True, 2**70)
        ),
        *(
            (message(terms={"loss": loss}), "its terms 'loss' is not a finite number")
            for loss in (float("nan"), 10**400, "low")
        ),
        (message(terms=[1.0]), "its terms are not a table of numbers"),
        (message(terms={str(i): 0.0 for i in range(1000)}), "its terms are not a table of numbers"),
        (message(terms={"a|b": 1.0}), "its terms have an impossible name, 'a|b'"),
        (message(terms={"bad\x1b[2J": 1.0}), "its terms have an impossible name, 'bad?[2J'"),
        (message(notes={"threshold": 1.0}), "it has fields that no one asked for"),
        *(
            (message(step_lengths=lengths), "its step lengths are not those of the model")
            for lengths in (
                {},
                {"f.weight": 0.0, "f.bias": 1.0},
                {"h.weight": 1.0},
                {"f.weight": -1.0},
            )
        ),
        (message(seconds=float("inf")), "its seconds is not a finite number"),
        (message(round=3), "it answers another question"),
        (message(client=0), "it answers another question"),
        (message(header={"error": "refused-storage"}), "[refused-storage]"),
        *((few, "it is cut short") for few in (b"", b"\0\0")),
        (reply_message(GOOD, None, 4, 0.0)[:-5], "it cannot be read"),
        (struct.pack(">I", 2**31) + b"{}", "its header is cut short or too long"),
        (struct.pack(">I", 2) + b"[]" + save({}), "its header is not a table"),
        (
            struct.pack(">I", 4) + b"\x80\x04K." + save({}),
            "it cannot be read",
        ),  # a pickle is not JSON
        (pack({"same": {"update/f.bias": "y"}}), "its header names tensors that are not there"),
        (message(tensors={"update/f.weight": torch.ones(2**20)}), "more than the"),
    ],
)
def test_a_bad_reply_is_refused(sent, why):
    assert why in message_of(read_reply, sent, EXPECTED, error=WireError)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(noise):
    for sent in (
        noise,
        struct.pack(">I", len(noise)) + noise,
        struct.pack(">I", 2) + b"{}" + noise,
    ):
        with pytest.raises(WireError):
            read_reply(sent, EXPECTED)


LEAVES = st.none() | st.booleans() | st.floats() | st.text()


@pytest.mark.slow
@given(st.recursive(LEAVES, lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_no_header_raises_anything_else(value):
    for key in (
        "client",
        "classes",
        "samples",
        "terms",
        "step_lengths",
        "notes",
        "seconds",
        "same",
        "error",
    ):
        header, body = unpack(reply_message(GOOD, None, 4, 1.25))
        text = json.dumps({**header, key: value}).encode()
        with contextlib.suppress(WireError):
            read_reply(struct.pack(">I", len(text)) + text + save(body), EXPECTED)


@pytest.mark.parametrize("largest", [0, 2**31 - 1, -(2**31), 2**31, -(2**63)])
def test_whole_numbers_travel_in_32_bits_where_they_fit(largest):
    sums = {
        "total": torch.tensor([1, largest, -5] * 1000),
        "tags": torch.arange(3, dtype=torch.int32),
    }
    sent = pack({}, sums)
    header, found = unpack(sent)
    assert header == {}
    assert {name: value.dtype for name, value in found.items()} == {
        "total": torch.int64,
        "tags": torch.int32,
    }
    assert same(found, sums)
    assert (
        wire_size(sums)
        == 12 + (4 if abs(largest + 0.5) < 2**31 else 8) * 3000
        < len(sent)
        < wire_size(sums) + 500
    )


@pytest.mark.parametrize("names", [["total"], ["nothing"], [3], "tags", {"tags": 1}, [["tags"]]])
def test_only_tensors_of_32_bits_are_made_wider(names):
    with pytest.raises(WireError, match="names tensors that are not there"):
        unpack(
            pack(
                {"int64": names},
                {"total": torch.ones(3), "tags": torch.arange(3, dtype=torch.int32)},
            )
        )
