import numpy as np
import pytest
from described import roles

from fedunseen.data import ClassSpace, read_classes
from fedunseen.data.class_space import draw_validation
from refusals import message_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "b", "a", "c", "d", "e")}, "the class name 'a' occurs 2 times: give each "
                                                    "class its own name"),
        ({"attribute_names": ("x", "y", "x")}, "the attribute name 'x' occurs 2 times: give each "
                                               "attribute its own"),
        ({"semantics": np.ones((6, 4))}, "the semantics have the shape (6, 4), but there are 6 "
                                         "classes with 3"),
        ({"semantics": np.where(np.eye(6, 3, -2), np.nan, 1)}, "the class 'class 2' has NaN or "
                                                               "infinite attributes"),
        ({"semantics": np.where(np.eye(6, 3, -2), 1e300, 1)}, "the class 'class 2': 1e+300 is too "
         "large for the attribute 'attribute 0': give at most 1e+12, in a larger unit"),
        ({"semantics": np.where(np.eye(6, 3, -2), -1e15, 1)}, "the class 'class 2': -1e+15 is too "
                                                              "large for"),
        ({"seen": [1, 2, 3], "unseen": [3, 4]}, "the class 'class 3' is both seen and unseen"),
        ({"unseen": [4, 6]}, "the unseen class id 6 is outside 0..5"),
        ({"validation": [4]}, "the validation class 'class 4' is not among the seen classes"),
        ({"seen": []}, "no class is seen: at least one class must have training samples"),
        ({"seen": [0, 0, 3]}, "the ids of the seen classes are not a list of different numbers"),
        ({"attribute_groups": {"g": (0, 3)}}, "an attribute group names column 3, but there are 3 "
                                              "attributes"),
        ({"attribute_groups": {"g": (0,), "h": (0, 1)}}, "the attribute 'attribute 0' is in more "
                                                         "than one group"),
        ({"attribute_groups": {"g: h": (0,)}}, "the attribute group name 'g: h' holds a colon and "
                                               "a space: rename it"),
    ],
)  # fmt: skip
def test_refuses(changes, message, make_space):
    assert message_of(make_space, **changes).startswith(message)


@pytest.mark.parametrize("groups", [{}, {"shape": (3, 1), "a:": (0,)}])
def test_saved_classes_read_back_bit_for_bit(tmp_path, groups):
    semantics = np.random.default_rng(0).normal(size=(4, 5)) * [[1e-300], [1], [1 / 3], [1e11]]
    semantics[1] = [0.1, np.nextafter(0.1, 1), -0.0, 2**39 + 2**-13, 5e-324]
    names = ('he said "no"', "a,b", "ünï\ncode", "d: e")
    attributes = (
        "name",
        "split",
        "x: y",
        ": z",
        "plain",
    )  # all that the format has to take care of
    space = ClassSpace(
        names, semantics, attributes, [0, 2], [2], [3], groups
    )  # class 1 is neither seen nor unseen
    space.save(tmp_path / "classes.csv")
    back = ClassSpace.load(tmp_path / "classes.csv")
    assert (back.names, back.attribute_names, roles(back)) == (
        names,
        attributes,
        ([0, 2], [2], [3]),
    )
    assert back.semantics.tobytes() == semantics.tobytes()
    assert {g: set(c) for g, c in back.attribute_groups.items()} == {
        g: set(c) for g, c in groups.items()
    }
    read, values = read_classes(tmp_path / "classes.csv", space)
    assert (read, values.tobytes()) == (names, semantics.tobytes())


def test_a_class_without_attributes_is_a_run_s_alone(tmp_path, make_space):
    path, rows = tmp_path / "classes.csv", make_space().semantics
    space = make_space(
        semantics=np.where(np.arange(len(rows))[:, None] > 3, 0, rows), undescribed=[5, 4]
    )
    space.save(path)
    assert path.read_text("utf-8").splitlines()[-1] == "class 5,unseen,,,"
    back = ClassSpace.load(path, of_run=True)
    assert (back.hashes(), back.undescribed.tolist()) == (space.hashes(), [4, 5])
    assert not np.array_equal(back.semantics[4], back.semantics[5])
    assert read_classes(path, back)[0] == space.names[:4]
    said = message_of(ClassSpace.load, path)
    assert said.startswith(
        f"{path}, line 6: the class 'class 4' has no attributes: describe it, or leave it out"
    )


@pytest.fixture
def colors(make_space):
    return make_space(attribute_names=("size", "red", "green"), attribute_groups={"color": (1, 2)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,size\na,1\n", "{path} has no column 'split' in its first line"),
        ("name,split,name\na,seen,b\n", "{path} has more than one column 'name' in its first line"),
        ("name,split,size\na,unsen,1\n", "{path}, line 2: unknown split 'unsen': did you mean "
                                         "'unseen'? (known:"),
        ("name,split,size\na,seen,big\n", "{path}, line 2, column 'size': 'big' is not a number"),
        ("name,split,size\na,seen\n", "{path}, line 2: 2 cells, but the first line has 3"),
        (b"name,split,size\n\xff\xfe,seen,1\n", "{path} is not a text file in UTF-8: save it as "
                                                "CSV in UTF-8"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "classes.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message_of(ClassSpace.load, path).startswith(message.format(path=path))


def test_a_spreadsheets_file_is_read_and_new_classes_may_order_their_columns_as_they_like(
    tmp_path, colors
):
    path = tmp_path / "classes.csv"
    path.write_bytes(b"\xef\xbb\xbfname,split, color: red\r\napple, seen ,1.5\r\n\r\n")
    space = ClassSpace.load(path)
    assert (space.names, space.attribute_names, space.attribute_groups) == (
        ("apple",),
        ("red",),
        {"color": (0,)},
    )
    assert roles(space) == ([0], [], [])
    path.write_text("green,split,color: red,name,size\n1,,2,kiwi,3\n4,,5,plum,6\n")
    names, semantics = read_classes(path, colors)
    assert (names, semantics.tolist()) == (("kiwi", "plum"), [[3, 2, 1], [6, 5, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,size,red\na,1,2\n", "{path}: the attribute column 'green' is missing"),
        ("name\na\n", "{path}: the attribute column 'size' is missing (and 2 more)"),
        ("name,size,red,gren\na,1,2,3\n", "{path}: unknown attribute column 'gren': did you mean "
                                          "'green'?"),
        ("name,size,red,green,color: red\na,1,2,3,4\n", "{path}: the attribute column 'color: red' "
                                                        "occurs twice"),
        ("size,red,green\n1,2,3\n", "{path} has no column 'name' in its first line"),
        ("name,size,red,green\na,1,2,\n", "{path}, line 2, column 'green': '' is not a number"),
        ("name,size,red,green\na,1,1,1\na,1,1,2\n", "{path}: the class 'a' occurs 2 times"),
        ("name,size,red,green\n,1,1,1\n", "{path}: a class has no name"),
        ("", "{path} is empty"),
    ],
)  # fmt: skip
def test_bad_new_classes(tmp_path, colors, text, message):
    path = tmp_path / "new.csv"
    path.write_text(text)
    assert message_of(read_classes, path, colors).startswith(message.format(path=path))


def test_drawn_validation_classes():
    seen = np.arange(3, 43)
    drawn = draw_validation(seen, None, seed=0)
    assert len(drawn) == 8
    assert (
        drawn.tolist()
        == sorted(set(drawn) & set(seen))
        == draw_validation(seen, None, seed=0).tolist()
    )
    assert drawn.tolist() != draw_validation(seen, None, seed=1).tolist()
    assert [
        len(draw_validation(*given, 0))
        for given in ((seen, 39), (seen[:2], None), (seen[:1], None))
    ] == [39, 1, 0]
    said = message_of(draw_validation, seen, 40, 0)
    assert (
        said == "40 validation classes out of 40 seen classes leave none to train on: ask for fewer"
    )
