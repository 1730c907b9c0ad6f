"""Files of a run directory that another has written: each value may be of any kind."""

import copy
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError, RunDirectoryError
from fedunseen.pages.report import model_card, write_report
from refusals import message_of

FEW = {
    "data.train_per_class": 6, "data.test_per_class": 4, "partition.clients": 3,
    "evaluation.selection": "last", "run.device": "cpu",
}  # fmt: skip
WILD = (None, "x", [], {}, -1, [None], True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("crafted") / "run"
    run(Experiment.load("digit-pairs-gaussian", FEW), out)
    return out


def used(path, width):
    """Do with a run directory what its reader does first."""
    loaded = load_run(path)
    loaded.headline()
    loaded.predict(np.zeros((2, width), np.float32))
    loaded.explain(np.zeros((1, width), np.float32))
    write_report(loaded)
    model_card(loaded)


def places(table, deepest, path=()):
    """Yield the way to each value of a JSON table, and to the first of each list."""
    keys = table if isinstance(table, dict) else range(min(len(table), 1))
    for key in keys:
        yield (*path, key)
        if isinstance(table[key], (dict, list)) and len(path) + 1 < deepest:
            yield from places(table[key], deepest, (*path, key))


def crafted(content, every):
    """Yield a table with one value of each place left out, or of another kind; of these values
    every so many, which are others at the next place.
    """
    for place, path in enumerate(places(content, 2)):
        for value in (..., *WILD)[place % every :: every]:
            changed = copy.deepcopy(content)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield path, value, changed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["result.json", "manifest.json"])
def test_a_value_of_any_kind_is_read_or_refused_in_one_sentence(file, every, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    width = json.loads((whole / "manifest.json").read_text())["input_shape"][0]
    used(folder, width)
    refused = set()
    for path, value, changed in crafted(json.loads((whole / file).read_text()), every):
        (folder / file).write_text(json.dumps(changed))
        try:
            used(folder, width)
        except FedUnseenError:
            refused.add(path[0])
        except Exception as error:
            raise AssertionError(f"{path} = {value!r}: {error!r}") from error
    needed = {"result.json": {"zsl", "rounds"}, "manifest.json": {"seed", "traits", "task"}}
    assert needed[file] <= refused if every == 1 else refused


WEIGHTS = {"setting": "encoder.weights", "files": {"a": 1}, "digest": "0"}


@pytest.mark.parametrize("key", ["encoder", "text_encoder"])
def test_an_entry_of_weights_without_what_it_needs_is_refused(key, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    manifest = json.loads((whole / "manifest.json").read_text())

    def write(entry):
        (folder / "manifest.json").write_text(json.dumps(manifest | {key: entry}))

    needed = list(WEIGHTS)[key == "text_encoder" :]
    for name in needed:
        for value in (..., None, 1, ["a"], {"a": "b"}):
            write(
                {k: value if k == name else WEIGHTS[k] for k in needed if (k, value) != (name, ...)}
            )
            said = message_of(load_run, folder, error=RunDirectoryError)
            assert "manifest.json is damaged: restore it" in said
    write(WEIGHTS)
    assert load_run(folder).manifest[key] == WEIGHTS


@pytest.mark.parametrize("name", ["client_counts", "gzsl_answers"])
@pytest.mark.parametrize("missing", [True, False])
def test_tables_of_other_arrays_are_written_or_refused(name, missing, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    arrays = load_file(folder / "evaluation.safetensors")
    arrays[name] = np.ones(1, arrays[name].dtype)
    if missing:
        del arrays[name]
    save_file(arrays, folder / "evaluation.safetensors")
    if missing and name == "client_counts":
        assert "clients" not in load_run(folder).tables()
        return
    with pytest.raises(RunDirectoryError, match=r"evaluation\.safetensors is damaged"):
        load_run(folder).tables()


def changed(whole, folder, file, change):
    """Copy a run with a change to one of its files; return the copy."""
    shutil.copytree(whole, folder)
    content = json.loads((whole / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    return folder


def test_texts_in_the_place_of_numbers_are_refused(whole, tmp_path):
    """They came into headings and the model card, or ended in a traceback."""
    text = "<img src=x>"
    for number, (file, change) in enumerate(
        (
            ("result.json", lambda result: result.update(adapted={"samples": text})),
            ("manifest.json", lambda manifest: manifest.update(client=text)),
        )
    ):
        path = changed(whole, tmp_path / str(number), file, change)
        assert f"{file} is damaged" in message_of(load_run, path, error=RunDirectoryError)


@pytest.mark.parametrize("plugins", [None, ["a" * 10**6]])
def test_a_name_of_a_megabyte_is_shortened_in_the_refusal(plugins, whole, tmp_path):
    def change(manifest):
        manifest["experiment"]["method"]["name"] = "a" * 10**6
        manifest["plugins"] = plugins

    run = load_run(changed(whole, tmp_path / "run", "manifest.json", change))
    sentence = message_of(lambda: run.experiment, error=FedUnseenError)
    assert "of this run comes from" in sentence
    assert len(sentence) < 1000
