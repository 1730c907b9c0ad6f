"""The table of bounds: each row at its bounds, beyond them, NaN and infinity, and other types."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedunseen.core.bounds import (
    ANY,
    ANY_LENGTH,
    ANY_SETTING,
    ANY_WHOLE,
    LENGTHS,
    MALFORMED,
    MODEL,
    NOT_FINITE,
    NUMBERS,
    OUTSIDE,
    SEMANTICS,
    STATISTICS,
    check_header,
    check_model,
    check_statistics,
)
from fedunseen.core.errors import RefusedError
from fedunseen.data.benchmark import DataSettings
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.federation.worker import Worker
from fedunseen.methods.base import MethodSettings
from fedunseen.safety.privacy.client_level import PrivacySettings
from fedunseen.strategies import Instruction, StrategySettings
from small_federation import NAMES, experiment, greeting, party, write_all

OTHERS = {"method.mine": ANY, "evaluation.mine.inner": ANY, "mine": ANY}
WHOLE = {"method.count": ANY_SETTING, "growing.count": ANY_WHOLE}
ROWS = {**NUMBERS, **OTHERS, **WHOLE}
SPACE = "space/semantics"


def code_of(check, *given):
    """Return the code of a refusal in one sentence; "" where the party takes what it is given."""
    try:
        check(*given)
    except RefusedError as error:
        found = error
    else:
        return ""
    assert str(found).startswith("the coordinator sends ")
    assert "\n" not in str(found)
    assert len(str(found)) < 300
    return found.code


def header_with(name, value):
    """Return a header with a number in its place."""
    if name in ("shape", "validation"):
        return {name: [value]}
    first, *rest = name.split(".")
    if not rest:
        return {name: value}
    for key in reversed(rest):
        value = {key: value}
    tree = {first: value}
    return tree if first == "growing" else {"experiment": tree}


def beyond(bound):
    """Return the numbers next to the bounds, outside."""
    if bound.whole:
        return bound.least - 1, bound.most + 1
    return math.nextafter(bound.least, -math.inf), math.nextafter(bound.most, math.inf)


@pytest.mark.parametrize("name", ROWS)
def test_a_number_of_a_header_stays_within_its_row(name):
    bound = ROWS[name]

    def code(value):
        return code_of(check_header, header_with(name, value))

    inside = [int(x) if bound.whole else float(x) for x in (bound.least, bound.most)]
    assert [code(value) for value in inside] == ["", ""]
    assert [code(value) for value in beyond(bound)] == [OUTSIDE] * 2
    assert [code(value) for value in (math.nan, math.inf, -math.inf)] == [NOT_FINITE] * 3
    assert [code(value) for value in (10**400, -(10**400))] == [OUTSIDE] * 2
    if name in NUMBERS:
        assert [code(value) for value in (True, "1", "nan")] == [MALFORMED] * 3
        assert [code(word) for word in bound.words] == [""] * len(bound.words)
    if bound.whole and name in NUMBERS:
        assert code(1e5 + 0.5 if bound.most > 1e6 else bound.most - 0.5) == MALFORMED


@pytest.mark.parametrize("text", ["1e20", "inf", " NaN ", "1_000_000_000"])
def test_no_text_hides_a_number_from_its_bounds(text):
    for name in ("privacy.clip", "strategy.rounds", "method.lr"):
        assert code_of(check_header, header_with(name, text)) == MALFORMED
    assert code_of(check_header, {"experiment": {"method": {"name": text}}}) == ""


@pytest.mark.parametrize("name", [*LENGTHS, "mine", "growing.classes", "growing"])
def test_a_list_is_as_long_as_its_row_says_and_lists_are_not_nested_deeply(name):
    most = LENGTHS.get(name, ANY_LENGTH)

    def code(items):
        return code_of(check_header, header_with(name, items))

    if name == "shape":
        assert [code_of(check_header, {name: [1] * n}) for n in (most, most + 1)] == ["", OUTSIDE]
    elif name == "growing":
        sizes = ({str(k): "a" for k in range(n)} for n in (most, most + 1))
        assert [code_of(check_header, {name: table}) for table in sizes] == ["", OUTSIDE]
    else:
        assert [code(["a"] * n) for n in (most, most + 1)] == ["", OUTSIDE]
    deep = 1
    for _ in range(20):
        deep = [deep]
    assert code_of(check_header, {"mine": deep}) == MALFORMED


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_stays_within_its_row(name):
    row, width = STATISTICS[name], 3
    key = name.replace("N.", "1.")
    size = 64 if row.kernel else width if row.each else 1

    def code(*values, kind=np.float32):
        """Put values into a tensor that is right otherwise."""
        numbers = np.full(size, min(8.0, row.bound.most), dtype=kind)
        numbers[: len(values)] = values
        given = {key: torch.from_numpy(numbers)}
        return code_of(check_statistics, given, [width], SPACE)

    inner = [np.float32(one) for one in (row.bound.least, row.bound.most)]
    inner = [
        np.nextafter(one, np.float32(1)) if not row.bound.holds(float(one)) else one
        for one in inner
    ]
    assert [code(one) for one in inner] == ["", ""]
    ways = (np.float32(-3e38), np.float32(3e38))
    outer = [np.nextafter(one, way) for one, way in zip(inner, ways, strict=True)]
    assert [code(one) for one in outer] == [OUTSIDE] * 2
    also = row.bound.also
    assert [code(one) for one in also] == [""] * len(also)
    strange = [one for one in (math.nan, math.inf, -math.inf) if one not in also]
    assert [code(one) for one in strange] == [NOT_FINITE] * len(strange)
    assert code(kind=np.float64) == MALFORMED
    wrong = [torch.zeros(width + 1), torch.zeros(1, size), torch.zeros(0)]
    codes = [code_of(check_statistics, {key: value}, [width], SPACE) for value in wrong]
    assert codes == [MALFORMED] * 3


def test_other_tensors_of_a_greeting_are_refused():
    def code(name, value, shape=(3,)):
        return code_of(check_statistics, {name: value}, list(shape), SPACE)

    assert code("1.mean", torch.zeros(3), (3, 8, 8)) == MALFORMED  # only vectors are scaled
    assert code("1.variance", torch.zeros(3)) == code("mean", torch.zeros(3)) == MALFORMED
    rows = torch.zeros(2, 4, dtype=torch.float64)
    assert code(SPACE, rows) == ""
    assert code(SPACE, rows[0]) == code(SPACE, rows.long()) == MALFORMED
    assert code(SPACE, rows + 2 * SEMANTICS.most) == OUTSIDE
    for value in (math.nan, math.inf, -math.inf):
        assert code(SPACE, rows + value) == NOT_FINITE


@pytest.mark.parametrize("name", ["params/w", "extras/control"])
def test_a_model_is_finite_and_within_its_bounds(name):
    def code(value):
        return code_of(check_model, {name: torch.tensor([0.0, value], dtype=torch.float64)})

    assert [code(value) for value in (MODEL.least, MODEL.most)] == ["", ""]
    assert [code(value) for value in beyond(MODEL)] == [OUTSIDE] * 2
    assert [code(value) for value in (math.nan, math.inf, -math.inf)] == [NOT_FINITE] * 3
    assert code_of(check_model, {name: torch.zeros(1, dtype=torch.complex64)}) == MALFORMED
    assert code_of(check_model, {name: torch.zeros(1, dtype=torch.int64)}) == ""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("bounds") / "data")


@pytest.fixture(scope="module")
def greetings(data, tmp_path_factory):
    """The greetings of a run in clear and of a masked one."""
    return {
        aggregation: greeting(
            experiment(data, "fedzsl", privacy__aggregation=aggregation),
            tmp_path_factory.mktemp("greeting") / aggregation,
        )
        for aggregation in ("plain", "masked")
    }


@pytest.fixture
def computed(monkeypatch):
    """Return what a party has computed: nothing, as long as the list is empty."""
    done = []

    def computes(name):
        def call(*given):
            done.append(name)
            raise ValueError(name)

        return call

    monkeypatch.setattr(PartyData, "_prepare", computes("greeting"))
    monkeypatch.setattr(Worker, "round", computes("round"))
    return done


def merged(header, changes):
    """Return a header with tables of changes in it."""
    changed = dict(header)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(changed.get(name), dict)
        changed[name] = merged(changed[name], value) if both else value
    return changed


def bad_statistics():
    for name, row in STATISTICS.items():
        size = 64 if row.kernel else 1 if row.single else 8
        for value, code in ((math.nan, NOT_FINITE), (3e38, OUTSIDE)):
            yield {name.replace("N.", "1."): torch.full((size,), value)}, code
    yield {SPACE: torch.full((2, 4), math.nan, dtype=torch.float64)}, NOT_FINITE
    yield {"mine": torch.zeros(8)}, MALFORMED


def test_a_party_computes_nothing_of_a_greeting_beyond_the_bounds(
    data, greetings, computed, tmp_path
):
    header, tensors = greetings["plain"]
    cases = [({"shape": 8}, {}, MALFORMED), ({"space": []}, {}, MALFORMED)]
    for name, bound in ROWS.items():
        for value, code in ((math.inf, NOT_FINITE), (beyond(bound)[1], OUTSIDE)):
            cases.append((header_with(name, value), {}, code))
    cases += [({}, statistics, code) for statistics, code in bad_statistics()]
    held = PartyData(data / "north")
    north = party(data / "north", tmp_path, [], guarded=False)
    for changes, statistics, code in cases:
        told = merged(header, changes), {**tensors, **statistics}
        assert code_of(held.prepare, *told) == code, changes
        for ask in (north.answer, north.reply):
            answer, _ = unpack(ask(pack(*told)))
            assert (answer["error"], computed) == ("refused-number", []), (changes, statistics)
    with pytest.raises(ValueError, match="greeting"):  # control
        held.prepare(header, tensors)


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_a_party_computes_nothing_of_a_round_beyond_the_bounds(
    aggregation, data, greetings, tmp_path, request
):
    kit = None
    if aggregation == "masked":
        pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")
        from fedunseen.deploy.secagg.enrolment import enrol

        enrol(tmp_path / "kits", NAMES)
        kit = tmp_path / "kits" / "north"
    header, statistics = greetings[aggregation]
    if kit is not None:
        header = {**header, "names": NAMES}
    north = party(data / "north", tmp_path / "state", [], kit, guarded=kit is not None)
    assert "error" not in unpack(north.answer(pack(header, statistics)))[0]
    computed = request.getfixturevalue("computed")
    asked = {"kind": "round", "client": 0, "round": 0, "after": -1}
    numbers = {
        "round": 1e7, "after": -2, "client": math.nan, "k": 10**400, "mine": 1e13, "growing": {"x": math.inf},
    }  # fmt: skip
    cases = [({name: value}, {}) for name, value in numbers.items()]
    for value in (math.nan, -math.inf, 1e16, 1j):
        cases += [({}, {f"{part}/w": torch.tensor([value])}) for part in ("params", "extras")]
    for changes, tensors in cases:
        unread = any(tensor.is_complex() for tensor in tensors.values())
        code = "refused-message" if unread else "refused-number"
        message = pack({**asked, **changes}, tensors)
        for ask in (north.answer, north.reply):  # its site looks, and the party does
            answer, _ = unpack(ask(message))
            assert (answer["error"], computed) == (code, []), (changes, tensors)
    if kit is not None:
        answer, _ = unpack(north.reply(pack({"kind": "plan", "content": {"k": math.inf}})))
        assert answer["error"] == "refused-number"
        return
    north.answer(pack(asked, {"params/w": torch.zeros(1)}))  # control
    assert computed == ["round"]


@pytest.mark.parametrize("part", ["params", "extras"])
def test_a_party_computes_nothing_of_a_file_beyond_the_bounds(part, monkeypatch):
    pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")
    from fedunseen.deploy.offline import party as by_file

    monkeypatch.setattr(by_file, "_check_asked", lambda *given: None)  # it has tests of its own
    for value, code in ((math.nan, NOT_FINITE), (1e16, OUTSIDE), (1.0, "")):
        told = Instruction(**{"params": {}, "extras": {}, part: {"w": torch.tensor([value])}})
        answering = SimpleNamespace(plan=SimpleNamespace(instruction=told), credentials=None)
        assert code_of(by_file.Answering.check_plan, answering) == code


KINDS = {
    "privacy": PrivacySettings,
    "strategy": StrategySettings,
    "method": MethodSettings,
    "data": DataSettings,
}


@pytest.mark.parametrize(
    "name", [one for one in NUMBERS if one.split(".")[0] in KINDS and "." in one]
)
def test_settings_have_the_bounds_of_the_table(name):
    section, key = name.split(".")
    field = KINDS[section].model_fields[key]
    shown = f"{field.annotation} {field.metadata}"
    bound = NUMBERS[name]
    assert f"ge={bound.least}" in shown.lower()
    assert f"le={bound.most}" in shown.lower()


def test_honest_scalers_and_experiments_pass():
    from fedunseen import Experiment
    from fedunseen.data import Quantization, Scaler
    from fedunseen.deploy.hooks import party_sections

    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    rows[:, 1] = 2.0  # a constant column, whose deviation is infinite and whose step is 0
    for steps in (("standard",), ("min-max",), ("l2", "centre"), ("standard", "kernel"), ()):
        scaler = Scaler.fit(rows, steps)
        fitted = Quantization.of_rows(8, 12.0, rows, scaler)
        scaler = scaler.quantized(Quantization.of_kernel(8, 1024) if "kernel" in steps else fitted)
        given = {name: torch.from_numpy(value) for name, value in scaler.statistics.items()}
        check_statistics(given, [3], SPACE)
    for preset in ("digit-pairs", "digit-pairs-gaussian", "digit-pairs-clswgan"):
        check_header({"experiment": party_sections(Experiment.load(preset))})


PAGE = Path(__file__).parents[2] / "docs" / "differential-privacy.md"


def test_the_page_shows_the_table():
    """``python tests/privacy/test_bounds.py`` writes it."""
    assert page_with_table() == PAGE.read_text("utf-8")


def page_with_table():
    """Return the page with the table of the code."""
    settings = {name: str(bound) for name, bound in NUMBERS.items() if "." in name}
    scaling = {f"tensor `{name}`": str(row.bound) for name, row in STATISTICS.items()}
    shown = {f"`{name}`": text for name, text in settings.items()} | scaling
    shown |= {"other whole settings": str(ANY_SETTING), "numbers of a model": str(MODEL)}
    lines = ["| number | bounds |", "|---|---|", *(f"| {k} | {v} |" for k, v in shown.items())]
    before, _, rest = PAGE.read_text("utf-8").partition("<!-- bounds -->\n")
    after = rest.partition("<!-- /bounds -->")[2]
    return before + "\n".join(["<!-- bounds -->", *lines, "<!-- /bounds -->"]) + after


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), "utf-8")
