"""What the tests of the service share: finished runs, a client in this process."""

import socket
import threading

import pytest
from fastapi.testclient import TestClient

from fedunseen import Experiment, load_run
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.app import create_app
from small_runs import METHOD


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    """Every model here is small."""


@pytest.fixture(scope="session")
def finished(run_once):
    """Run an experiment; return its run directory, not to be written to."""
    return run_once


@pytest.fixture(scope="session")
def digits(finished):
    """A run of digit-pairs that recognizes the examples."""
    settings = {
        "strategy.rounds": 12,
        "evaluation.selection": "last",
        "evaluation.clients": False,
        "method.kl": 0,
    }
    settings |= {
        "evaluation.embedding": False,
        "evaluation.theory": False,
        "data.test_per_class": 4,
    }
    return finished(Experiment.load("digit-pairs", settings))


@pytest.fixture(scope="session")
def features(finished, make_folder, made_once):
    """A run on feature vectors of nine numbers and classes of six attributes."""
    data = {
        "name": "folder",
        "root": str(made_once("small folder", make_folder)),
        "features": ["standard"],
    }
    sections = {"data": data, "partition": {"clients": 3}, "method": METHOD}
    return finished(
        Experiment.from_dict(
            {**sections, "strategy": {"name": "fedavg", "rounds": 4, "local_epochs": 1}}
        )
    )


@pytest.fixture(scope="session")
def few(finished):
    """A few-shot run on single digits."""
    method = {"name": "protonet", "hidden": [32], "ways": 3, "queries": 5}
    sections = {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 2},
        "method": method,
    }
    sections["evaluation"] = {"selection": "last", "episodes": 10, "validation_episodes": 5}
    return finished(Experiment.from_dict({**sections, "strategy": {"name": "fedavg", "rounds": 2}}))


@pytest.fixture(scope="session")
def any_shot(finished):
    """A run in closed form, which takes descriptions and examples."""
    settings = {
        "evaluation.selection": "last",
        "data.train_per_class": 20,
        "data.test_per_class": 4,
    }
    return finished(
        Experiment.load("digit-pairs-gaussian", {**settings, "evaluation.embedding": False})
    )


@pytest.fixture
def client():
    """Open a run as a client of its service: ``client(path, token=...)``."""

    def opened(path, **options):
        app = create_app(Recognizer(load_run(path)), **options)
        app.state.warm.result(300)  # ready
        return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)

    return opened


@pytest.fixture
def served_app():
    """Serve an application in a thread; return where."""
    import uvicorn

    running = []

    def start(app, bounded=None, force=False):
        listening = socket.create_server(("127.0.0.1", 0))
        usual = {"log_config": None, "log_level": "warning", "lifespan": "off", "ws": "none"}
        server = bounded(app) if bounded else uvicorn.Server(uvicorn.Config(app, **usual))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        running.append((server, thread, listening, force))
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield start
    for server, thread, listening, force in running:
        server.should_exit, server.force_exit = True, force
        thread.join()
        listening.close()


@pytest.fixture
def served(served_app):
    """Serve a run in a thread; return where."""
    return lambda path, **options: served_app(create_app(Recognizer(load_run(path)), **options))


@pytest.fixture
def opened(browser):
    """Open a page; nothing may go wrong on it, and nothing may be asked of another place."""
    contexts, wrong = [], []

    def visit(url, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        ours = (url, "data:", "blob:")
        page.on(
            "request", lambda asked: None if asked.url.startswith(ours) else wrong.append(asked.url)
        )
        page.goto(url)
        page.wait_for_selector("#work:not([hidden]), #login:not([hidden])")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
