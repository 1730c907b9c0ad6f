"""Messages that are small and ask for much work: refused before any of it, which is counted."""

import json
import struct
from collections import Counter

import pytest
import torch
from safetensors.torch import save

from fedunseen.core.errors import FedUnseenError, RefusedError, RunDirectoryError
from fedunseen.core.files import RepeatedKeyError, parse_json
from fedunseen.data.names import folded
from fedunseen.deploy.client_data import PartyData, _place_of
from fedunseen.deploy.look.question import Question
from fedunseen.deploy.offline import files
from fedunseen.deploy.remote import wire
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.remote.wire import WireError, join, pack, split, unpack
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment, enrol, in_memory
from fedunseen.deploy.site import Site
from fedunseen.federation import growth
from fedunseen.federation.run_directory import load_params
from refusals import message_of

ANSWER = {"party": "north", "plan": "00" * 32, "file": "00" * 32, "k": 0, "masked": True}
NUMBERS = torch.arange(4, dtype=torch.int32)


def read_in_memory(content, folder):
    """Read content as a message has it."""
    return wire.read_tensors({}, content)


def read_from_file(content, folder):
    """Read content as a long message has it, which is spooled."""
    path = folder / "spooled"
    path.write_bytes(content)
    return wire.read_tensors({}, path)


def read_run(content, folder):
    """Read content as a file of a run directory has it."""
    path = folder / "round-0.safetensors"
    path.write_bytes(content)
    return load_params(path)


@pytest.fixture
def reads(monkeypatch):
    """Count how often tensors are read, and how many are converted to int64."""
    counts, load, to = Counter(), wire.load, torch.Tensor.to

    def counted_load(body):
        counts["read"] += 1
        return load(body)

    def counted_to(tensor, *arguments, **options):
        if torch.int64 in arguments:
            counts["converted"] += 1
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(wire, "load", counted_load)
    monkeypatch.setattr(torch.Tensor, "to", counted_to)
    return counts


def raw(header, body):
    """Return a message from the text of its header."""
    return struct.pack(">I", len(header)) + header.encode() + body


@pytest.mark.parametrize(
    "header",
    [
        {"int64": ["a"] * 500},
        {"int64": ["a", "b", "a"]},
        {"same": {f"c{i}": "a" for i in range(500)}},
    ],
    ids=["one", "two", "same"],
)
def test_names_that_repeat_cost_no_conversion(header, reads):
    body = save({"a": NUMBERS, "b": NUMBERS.clone()})
    why = message_of(unpack, join(header, body), error=WireError)
    assert why == "its header names a tensor too often"
    assert reads == {}
    once = {"int64": ["a", "b"], "same": {f"c{i}": "a" for i in range(8)}}
    tensors = unpack(join(once, body))[1]
    assert reads == {"read": 1, "converted": 2}
    assert {name: value.dtype for name, value in tensors.items()} == dict.fromkeys(
        ["a", "b", *once["same"]], torch.int64
    )


@pytest.mark.parametrize("header", [{"int64": ["a", "x"]}, {"int64": ["b"]}, {"same": {"a": "b"}}])
def test_names_that_do_not_fit_convert_nothing(header, reads):
    message = join(header, save({"a": NUMBERS, "b": torch.ones(1)}))
    assert "tensors that are not there" in message_of(unpack, message, error=WireError)
    assert reads["converted"] == 0


def test_many_names_of_tensors_are_refused_unread(reads, monkeypatch):
    message = pack({}, {"a" * 90: NUMBERS})
    assert unpack(message)[1].keys() == {"a" * 90}
    monkeypatch.setattr(wire, "_NAMES", 100)
    assert "names of its tensors" in message_of(unpack, message, error=WireError)
    assert reads["read"] == 1


@pytest.fixture(scope="module")
def party():
    credentials = in_memory(["north", "south", "west"])
    return credentials["north"]


def answer_file(party, tensors):
    return files.signed("answer", ANSWER, tensors, party.enrolment, party.signing)


def parts(file):
    """Return the header and the tensors of a signed file."""
    message = file.removeprefix(files._FIRST)
    header, first = split(message)
    return header, message[first:]


def test_a_file_that_is_not_signed_is_refused_before_its_tensors_are_read(party, reads, tmp_path):
    good = answer_file(party, {"elements": torch.arange(5)})
    path = tmp_path / "a.fedunseen"
    path.write_bytes(good)
    signed = files.read(path)
    assert signed.tensors["elements"].tolist() == [0, 1, 2, 3, 4]
    assert reads == {"read": 1, "converted": 1}
    header, body = parts(good)
    wide = {**header, "int64": ["elements"] * 300}
    for changed in (
        good[:-1] + b"\1",
        files._FIRST + join({**header, "int64": []}, body),
        files._FIRST + join(wide, body),
        files._FIRST + join({**header, "signature": "00" * 64}, body),
    ):
        path.write_bytes(changed)
        assert "is not signed by north" in message_of(files.read, path, error=RefusedError)
    assert reads == {"read": 1, "converted": 1}


def test_a_file_whose_signer_repeats_names_is_refused_before_its_tensors_are_read(
    party, reads, tmp_path
):
    header, body = parts(answer_file(party, {"a": NUMBERS.long()}))
    wide = {**header, "int64": ["a"] * 300}
    wide["signature"] = party.sign(files._PURPOSE + files._id(wide, body))
    path = tmp_path / "a.fedunseen"
    path.write_bytes(files._FIRST + join(wide, body))
    assert "names a tensor too often" in message_of(files.read, path, error=RefusedError)
    assert reads == {}


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', '{"b": {"a": 1, "a": 2}}', '[[{"b": [{"a": 1, "\\u0061": 2}]}]]'],
    ids=["top", "table", "list"],
)
def test_a_key_that_comes_twice_is_refused_at_every_depth(text):
    with pytest.raises(RepeatedKeyError, match="it names 'a' twice"):
        parse_json(text)
    other = text.replace('"a": 2', '"c": 2').replace('\\u0061": 2', 'c": 2').replace(', "a": 1', "")
    assert parse_json(other) == json.loads(other)


def test_a_message_that_names_twice_is_refused_by_both_sides(tmp_path):
    body = save({})
    hello, twice = '{"kind": "hello"}', '{"kind": "hello", "kind": "hello"}'
    assert unpack(raw(hello, body))[0] == {"kind": "hello"}
    assert "names 'kind' twice" in message_of(unpack, raw(twice, body), error=WireError)
    party = Party(lambda header, tensors: None, Site(tmp_path))
    assert "names 'kind' twice" in unpack(party.answer(raw(twice, body)))[0]["text"]
    nested = '{"kind": "hello", "experiment": {"privacy": {}, "privacy": {}}}'
    assert "names 'privacy' twice" in unpack(party.answer(raw(nested, body)))[0]["text"]


def tensors_named_twice():
    entry = '{"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}'
    text = f'{{"a": {entry}, "a": {entry}}}'.encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


def test_tensors_that_are_named_twice_are_refused(tmp_path):
    message = raw("{}", tensors_named_twice())
    assert "names 'a' twice" in message_of(unpack, message, error=WireError)
    path = tmp_path / "model.safetensors"
    path.write_bytes(tensors_named_twice())
    assert "names 'a' twice" in message_of(load_params, path, error=RunDirectoryError)
    path.write_bytes(save({"a": NUMBERS}))
    assert load_params(path)["a"].tolist() == NUMBERS.tolist()


@pytest.mark.parametrize("name", ["federation.json", "secagg.key"])
def test_credentials_that_name_twice_are_refused(name, tmp_path):
    enrol(tmp_path, ["north", "south", "west"])
    folder = tmp_path / "north"
    assert Credentials.load(folder).name == "north"
    path = folder / name
    text = path.read_text()
    path.write_text(text.replace('"ed25519"', '"x25519": "", "ed25519"', 1))
    assert "names 'x25519' twice" in message_of(Credentials.load, folder, error=RefusedError)


def test_a_list_of_parties_that_names_one_twice_is_refused(party):
    text = party.enrolment.text().decode()
    assert Enrolment.read(text.encode(), "f").names == ["north", "south", "west"]
    twice = text.replace('"parties": {', '"parties": {"north": {},', 1).encode()
    assert "names 'north' twice" in message_of(Enrolment.read, twice, "f", error=RefusedError)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"clients": 10**12}, "out-of-bounds"),
        ({"clients": 100_001}, "out-of-bounds"),
        ({"clients": True}, "malformed"),
        ({"clients": "3"}, "malformed"),
        ({"client": 3}, "refused-message"),
        ({"client": -1}, "out-of-bounds"),
        ({"client": None}, "refused-message"),
        ({"names": ["a", "b"]}, "refused-message"),
        ({"names": "abc"}, "refused-message"),
    ],
)
def test_the_number_of_parties_is_checked_before_a_list_is_made_of_it(changes, code):
    sections = {"data": {}, "engine": {}, "method": {"name": "gaussian"}}
    parts = {"experiment": sections, "shape": [3], "space": {}}
    header = {"client": 2, "clients": 3, "names": ["a", "b", "c"], **parts}
    assert _place_of(header) == (2, 3)
    assert _place_of({"client": 99_999, "clients": 100_000}) == (99_999, 100_000)
    party = object.__new__(PartyData)  # no data: nothing of it is read before the check
    with pytest.raises(FedUnseenError) as caught:
        party.prepare({**header, **changes}, {})
    assert caught.value.code == code


def test_names_of_classes_are_compared_once_each(monkeypatch):
    held = [f"class {i}" for i in range(400)]
    growing = {"classes": Counted(held), "tested": Counted([]), "attributes": [], "open": True}
    header = {"held": held, "brings": [], "samples": 400}
    assert wire.read_holdings(pack(header), growing, 1.0)[2] == tuple(held)
    assert growing["classes"].passes == growing["tested"].passes == 1
    calls = Counter()

    def counted(name):
        calls["folded"] += 1
        return folded(name)

    monkeypatch.setattr("fedunseen.federation.growth.folded", counted)
    known = growth.by_folded(held)
    for i in range(400):
        growth.check_new_name(f"new {i}", known)
    assert calls["folded"] == 400
    assert "has the name of the known class 'class 7'" in message_of(
        growth.check_new_name, "CLASS 7", known
    )


class Counted(list):
    """A list that counts how often it is read."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


def of_type(kind, **more):
    """Return safetensors content of eight bytes that are said to be of a type."""
    return with_entry({"dtype": kind, "shape": [8], "data_offsets": [0, 8], **more})


def with_entry(entry):
    """Return safetensors content of eight bytes, and what its header says of them."""
    text = json.dumps({"a": entry}).replace('"LONG"', "9" * 5000).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


@pytest.mark.parametrize("kind", ["F8_E8M0", "F8_E4M3", "F4", "C64", "BF16"])
@pytest.mark.parametrize("read", [read_in_memory, read_from_file, read_run])
def test_numbers_of_a_rare_type_are_refused(read, kind, tmp_path):
    """A party's answer of eight such bytes ended a coordinator: torch has no name for the first."""
    read(of_type("U8"), tmp_path)
    with pytest.raises((WireError, RunDirectoryError), match=f"numbers of the type '{kind}'"):
        read(of_type(kind), tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (with_entry(["F8_E8M0", [8], [0, 8]]), "its header is damaged"),
        (with_entry(["U8", [8], [0, 8]]), "its header is damaged"),
        (of_type({"F8_E8M0": None}), "numbers of the type "),
        (of_type("F8_E8M0", more="LONG"), "its header is damaged"),
        (of_type("U8", more=1), "its header is damaged"),
    ],
)
@pytest.mark.parametrize("read", [read_in_memory, read_from_file, read_run])
def test_a_header_that_two_libraries_read_differently_is_refused(read, content, words, tmp_path):
    """safetensors takes a list for a table, and a table for a name: both passed the check above."""
    with pytest.raises((WireError, RunDirectoryError), match=words):
        read(content, tmp_path)


def test_a_look_takes_whole_numbers_alone():
    question = Question(("a", "b"), ("c",))
    counts = {
        name: torch.zeros(shape, dtype=torch.int64) for name, shape in question.shapes.items()
    }
    assert question.checked(counts).keys() == counts.keys()
    for kind in (torch.float32, torch.bfloat16, torch.complex64):
        with pytest.raises(WireError, match="another form"):
            question.checked({**counts, "samples": counts["samples"].to(kind)})
