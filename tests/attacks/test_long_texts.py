"""Texts of megabytes from the other side: none reaches a file, a log or a terminal whole."""

import copy
import json
import struct

import pytest

from fedunseen.core.bounds import TEXT, check_header
from fedunseen.core.errors import RefusedError
from fedunseen.deploy.remote import wire
from fedunseen.deploy.remote.wire import WireError, pack, read_tensors
from fedunseen.deploy.secagg.enrolment import Enrolment, in_memory
from small_federation import experiment, greeting, party, write_all

LONG = "x" * 200_000
SHOWN = 2 * TEXT  # characters of a message that repeats one text


def places(value, path=()):
    """Yield the path of each text of a header."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def lengthened(header, path):
    """Return a header with a long text at ``path``."""
    changed = copy.deepcopy(header)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = LONG
    return changed


@pytest.fixture(scope="module")
def greeted(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("data"))
    settings = {"privacy.aggregation": "plain"}
    return folder, *greeting(experiment(folder, **settings), folder / "run")


def asked(folder, state, *messages):
    """Return the longest text that a party has said or sent, and the bytes that it has written."""
    said = []
    answering = party(folder / "north", state, said, guarded=False)
    answers = [answering.answer(message) for message in messages]
    error = [] if answering.error is None else [str(answering.error)]
    written = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    return max(map(len, [*said, *error, *answers])), written, wire.is_failure(answers[-1])


def test_no_long_text_of_a_greeting_is_written_or_shown(greeted, tmp_path):
    folder, header, tensors = greeted
    whole = list(places(header))
    assert {("run",), ("kind",), ("version",), ("experiment", "method", "name")} < set(whole)
    for number, path in enumerate(whole):
        message = pack(lengthened(header, path), tensors)
        shown, written, refused = asked(folder, tmp_path / str(number), message)
        assert (shown < SHOWN, written < SHOWN, refused) == (True, True, True), path
    shown, written, refused = asked(folder, tmp_path / "honest", pack(header, tensors))
    assert (shown < SHOWN, 0 < written < SHOWN, refused) == (True, True, False)


@pytest.mark.parametrize("run", ["x" * 30_000_000, "x" * 17, 5, None, ["a"]])
def test_a_run_whose_name_is_none_is_refused_before_a_line_is_written(run, greeted, tmp_path):
    folder, header, tensors = greeted
    shown, written, refused = asked(folder, tmp_path, pack({**header, "run": run}, tensors))
    assert (shown < SHOWN, written < SHOWN, refused) == (True, True, True)
    assert not (tmp_path / "releases.jsonl").exists()


@pytest.mark.parametrize(
    "changed",
    [{"kind": LONG}, {"kind": "round", "round": 10**4000}, {"kind": "round", "plan": LONG}],
)
def test_no_long_text_of_a_later_message_is_written_or_shown(changed, greeted, tmp_path):
    folder, header, tensors = greeted
    later = pack({"client": 0, "round": 0, "after": -1, **changed})
    _, before, _ = asked(folder, tmp_path / "greeted", pack(header, tensors))
    shown, written, refused = asked(folder, tmp_path / "asked", pack(header, tensors), later)
    assert (shown < 2000, written - before < 500, refused) == (True, True, True)


@pytest.mark.parametrize("nested", [LONG, {LONG: 1}, [[LONG]], {"a": {"b": LONG}}])
def test_texts_and_keys_of_a_header_are_bounded_at_any_depth(nested):
    for header in ({"mine": nested}, {"experiment": {"method": nested}}):
        with pytest.raises(RefusedError) as refused:
            check_header(header)
        assert (refused.value.code, len(str(refused.value)) < 300) == ("out-of-bounds", True)
    check_header({"mine": LONG[: TEXT - 1]})


@pytest.mark.parametrize(
    "table",
    [
        {"a": {"dtype": LONG, "shape": [0], "data_offsets": [0, 0]}},
        {LONG: {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": LONG},
        {"__metadata__": LONG},
    ],
)
def test_what_safetensors_repeats_of_a_message_is_short(table):
    text = json.dumps(table).encode()
    with pytest.raises(WireError, match="it cannot be read") as refused:
        read_tensors({}, struct.pack("<Q", len(text)) + text + bytes(8))
    assert len(str(refused.value)) < 1100


def test_a_long_name_in_a_list_of_parties_that_no_one_has_signed_is_shown_in_part():
    enrolment = next(iter(in_memory(["north", "south", "west"]).values())).enrolment
    tree = {**json.loads(enrolment.text()), "classes": {LONG: ["a"]}}
    with pytest.raises(RefusedError, match="is damaged") as refused:
        Enrolment.read(json.dumps(tree).encode(), "federation.json")
    assert len(str(refused.value)) < 400
