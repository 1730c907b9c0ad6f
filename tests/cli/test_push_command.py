"""``fedunseen push`` and ``hf://`` against a hub on this machine."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedunseen import load_model, load_run
from fedunseen.core.errors import DataError
from fedunseen.core.model_file import DAMAGED
from fedunseen.experiment import hub_models
from fedunseen.experiment.hub_models import hub_address
from fedunseen.pages.report.card import model_card

pytest.importorskip("huggingface_hub")


class Hub(ThreadingHTTPServer):
    """Repositories in memory, each with commits of files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = {}
        self.visible = {}
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name, files):
        commits = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(repr((len(commits), sorted(files))).encode()).hexdigest()
        commits[commit] = commits["main"] = files
        commits["main id"] = commit
        return commit


class Handler(BaseHTTPRequestHandler):
    """The part of the hub's interface that the library asks for."""

    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def give(self):
        self.server.asked.append((self.command, self.path))
        if self.path.startswith("/api/"):  # the library asks for more than is needed
            return self.answer(b"{}", 404)
        owner, name, _, revision, file = self.path.strip("/").split("/", 4)
        commits = self.server.repositories.get(f"{owner}/{name}", {})
        content = commits.get(revision, {}).get(file)
        if content is None:
            return self.answer(b"", 404, X_Error_Code="RepoNotFound", X_Error_Message="not found")
        commit = commits["main id"] if revision == "main" else revision
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self.answer(content, ETag=etag, X_Repo_Commit=commit)

    do_GET = do_HEAD = give

    def body(self):
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self):
        self.server.asked.append((self.command, self.path))
        body = self.body()
        kind, *place = self.path.partition("?")[0].removeprefix("/api/").split("/")
        if kind == "repos":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.visible.setdefault(name, asked.get("visibility"))
            self.server.repositories.setdefault(name, {})
            made = {"url": f"{self.server.address}/{name}", "id": name, "name": name}
            return self.answer(json.dumps(made).encode())
        if kind == "validate-yaml":  # of a card's head
            return self.answer(b'{"errors": [], "warnings": []}')
        owner, name, action, _ = place
        if action == "preupload":
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            return self.answer(json.dumps({"files": modes}).encode())
        lines = [json.loads(line)["value"] for line in body.splitlines() if line.strip()]
        files = {
            line["path"]: base64.b64decode(line["content"]) for line in lines if "path" in line
        }
        commit = self.server.commit(f"{owner}/{name}", files)
        url = f"{self.server.address}/{owner}/{name}/commit/{commit}"
        self.answer(json.dumps({"commitOid": commit, "commitUrl": url, "success": True}).encode())


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield server
    server.shutdown()


def test_a_pushed_model_is_loaded_from_the_hub(works, digits, hub, tmp_path):
    said = works("push", digits, "ward/model", "--yes", "--json")
    address = json.loads(said.out)["address"]
    commit = hub.repositories["ward/model"]["main id"]
    assert address == f"hf://ward/model@{commit}"
    assert hub.visible == {"ward/model": "private"}
    files = hub.repositories["ward/model"][commit]
    assert {*files} == {"README.md", "model.safetensors"}
    run = load_run(digits)
    rows = np.random.default_rng(0).random((4, *run.model.sample_shape), dtype=np.float32)
    for name in (address, "hf://ward/model"):
        model = load_model(name)
        assert np.array_equal(model.scores(rows), run.model.scores(rows))
        assert not model.statistics


def test_the_card_says_no_more_than_the_runs_own(works, digits, hub):
    works("push", digits, "ward/model", "--yes")
    card = hub.repositories["ward/model"]["main"]["README.md"].decode()
    assert 'load_model("hf://ward/model")' in card
    assert str(digits.resolve().parent) not in card
    own = model_card(load_run(digits))
    added = [line for line in card.splitlines() if line not in own.splitlines()]
    assert [line for line in added if "load_model" not in line] == [
        "print(model.sample_shape)  # of one sample, as an array; `model.rank(samples, top=3)` names "
        "classes"
    ]


def test_nothing_is_uploaded_by_a_dry_run_or_without_a_yes(works, refused, digits, hub):
    said = works("push", digits, "ward/model", "--dry-run")
    for named in ("README.md", "model.safetensors", load_run(digits).space.names[0]):
        assert named in said.err
    message = refused("push", digits, "ward/model")
    assert "add --yes" in message
    assert hub.asked == []


def test_a_model_here_is_loaded_without_a_question_to_the_hub(digits, hub, tmp_path):
    load_model(digits)
    load_run(digits).model.save(tmp_path / "model.safetensors")
    load_model(tmp_path / "model.safetensors")
    with pytest.raises(DataError):
        load_model("ward/model")
    assert hub.asked == []


def test_addresses_that_name_no_repository_are_refused(hub):
    for name in ("", "model", "a/b/c", "../x", "a/b@", "a/b c", "a/b?c", "-a/b"):
        with pytest.raises(DataError) as caught:
            load_model(f"hf://{name}")
        assert caught.value.code == hub_models.BAD_NAME
    assert hub.asked == []


def test_an_address_has_a_name_and_perhaps_a_revision():
    assert hub_address("hf://ward/my-model@v1.0") == ("ward/my-model", "v1.0")
    assert hub_address("ward/model") == ("ward/model", "")


def test_what_the_hub_refuses_or_holds_is_named(hub):
    with pytest.raises(DataError) as caught:
        load_model("hf://ward/none")
    assert (caught.value.code, "hf://ward/none" in str(caught.value)) == (hub_models.FAILED, True)
    hub.commit("ward/other", {"model.safetensors": b"\x00" * 64})
    with pytest.raises(DataError) as caught:
        load_model("hf://ward/other")
    assert caught.value.code == DAMAGED
