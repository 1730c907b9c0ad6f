"""The tool that counts functions: each once, in order, and none of an import."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
LIMITS = "[limits]\na = 3\nb = 5\n\n[targets]\na = 1\nb = 5\n"
MODULE = """
import threading


def used_by_import():
    return 1


VALUE = used_by_import()
LAMBDA = lambda: 2


class Kind:
    def __init__(self):
        self.numbers = [self.step(n) for n in range(3)]

    def step(self, n):
        return (lambda: n)()


def start():
    class Local:
        pass

    def within():
        from small_package import later

        return later.answer()

    made = Kind(), LAMBDA(), within(), within()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    return made


def elsewhere():
    pass
"""


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / "trace.py"))
    finally:
        sys.path.remove(str(TOOLS))


def test_functions_count_once_and_imports_do_not(tool, tmp_path, monkeypatch):
    folder = tmp_path / "small_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text(MODULE)
    later = "def load():\n    return 4\n\n\nload()\n\n\ndef answer():\n    return load()\n"
    (folder / "later.py").write_text(later)
    monkeypatch.syspath_prepend(tmp_path)
    from small_package import first

    trace = tool["Trace"](folder, "here")
    with trace.on():
        first.start()
    first.elsewhere()
    assert [(place.depth, place.file, place.name) for place in trace.places] == [
        (0, "first.py", "start"),
        (1, "first.py", "Kind.__init__"),
        (2, "first.py", "Kind.step"),
        (1, "first.py", "start.<locals>.within"),
        (2, "later.py", "answer"),
        (3, "later.py", "load"),
        (0, "first.py", "elsewhere"),
    ]
    assert {place.side for place in trace.places} == {"here"}


def test_a_number_over_its_limit_ends_the_check_and_limits_only_fall(tool, tmp_path, capsys):
    file = tmp_path / "limits.toml"
    file.write_text(LIMITS, "utf-8")
    tool["judge"]({"a": 3, "b": 4}, {"a": ["a place"]}, file, check=True, tighten=False)
    assert "    a place" in capsys.readouterr().out.splitlines()
    assert file.read_text("utf-8") == LIMITS
    with pytest.raises(SystemExit, match=r"^over the limit: a; limits\.toml holds the limits$"):
        tool["judge"]({"a": 4, "b": 4}, {}, file, check=True, tighten=True)
    assert file.read_text("utf-8").endswith(LIMITS.replace("b = 5", "b = 4", 1))


@pytest.mark.slow
def test_a_run_a_prediction_and_a_message_pass_no_more_functions_than_allowed():
    line = [sys.executable, str(TOOLS / "trace.py"), "--check"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
