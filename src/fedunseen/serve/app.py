"""The HTTP service: a run's model, asked by other programs and by its own page.

The model is loaded once. Questions are answered one after the other by one thread, so that none sees a class come or go
in its midst; the others wait in turn, a bounded number of them. ``/openapi.json`` describes every answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect

from fedunseen import __version__
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.report.card import model_card
from fedunseen.serve.guard import Guard, Limits, MeasuredModel
from fedunseen.serve.model import Added, Among, Recogniser
from fedunseen.serve.pages import page, reference
from fedunseen.serve.turn import CrowdedError, Turn
from fedunseen.serve.uploads import TooLargeError, checked, read_file, read_texts

__all__ = ["create_app"]

_T = TypeVar("_T")
_FILES = 256  # in one request


class ClassScore(BaseModel):
    """One class of a ranking."""

    name: str
    """Of the class."""
    score: float
    """In the method's own units; seen classes are lowered by the run's calibration factor."""
    probability: float
    """The softmax of the scores of all classes that were ranked: not how often the model is right."""
    kind: Literal["seen", "unseen", "added"]
    """In training, or added since."""


class AttributeEffect(BaseModel):
    """What an attribute adds to a class's score."""

    attribute: str
    value: float
    effect: float


class Answer(BaseModel):
    """What the model says of one sample."""

    input: str
    """The file, or the place of the sample: ``cat.png``, ``table.csv[3]``, ``[0]``."""
    classes: list[ClassScore]
    """Best first."""
    why: dict[str, list[AttributeEffect]] | None = None
    """With ``explain``: of the first three classes, the attributes that speak most for or against each."""


class Answers(BaseModel):
    """One answer a sample, in order."""

    answers: list[Answer]


class ClassEntry(BaseModel):
    """A class that can be the answer."""

    name: str
    kind: Literal["seen", "unseen", "added"]
    lasting: bool
    examples: int | None = None
    attributes: list[float] | None = None


class Classes(BaseModel):
    """All classes that can be the answer."""

    classes: list[ClassEntry]


_SAMPLES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "features": {
                            "description": "Samples as the run takes them before scaling: a list of numbers for each.",
                            "type": "array",
                            "items": {},
                        },
                        "text": {"description": "For a run on texts.", "type": "array", "items": {"type": "string"}},
                    },
                }
            },
        },
    }
}
_CLASS = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "attributes": {
                            "description": "All values in order, or by name those that are not 0.",
                            "oneOf": [
                                {"type": "array", "items": {"type": "number"}},
                                {"type": "object", "additionalProperties": {"type": "number"}},
                            ],
                        },
                        "sentence": {
                            "description": "A few words, where a text encoder described the run's classes.",
                            "type": "string",
                        },
                        "features": {"description": "Samples of the class.", "type": "array", "items": {}},
                        "text": {"description": "Samples of the class.", "type": "array", "items": {"type": "string"}},
                        "lasting": {"type": "boolean", "default": False},
                    },
                }
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        "name": {"type": "string"},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "attributes": {"description": "As JSON, where a run learns from both.", "type": "string"},
                        "sentence": {"type": "string"},
                        "lasting": {"type": "boolean", "default": False},
                    },
                }
            },
        },
    }
}


def create_app(
    model: Recogniser,
    token: str | None = None,
    local: bool = True,
    limits: Limits | None = None,
    write_token: str | None = None,
) -> FastAPI:
    """Return the service as an ASGI application.

    Args:
        model: the run at work. Nobody else may use it while the service runs.
        token: what clients must send; None asks for none.
        local: only this machine can reach the service.
        limits: of a request.
        write_token: what clients must send to add and remove classes; None: ``token``. Without both, no class lasts.
    """
    limits = limits or Limits()
    measured = MeasuredModel()
    app = FastAPI(title="FedUnseen", version=__version__, docs_url=None, redoc_url=None)  # those pages need a network
    app.add_middleware(Guard, token=token, local=local, limits=limits, measured=measured, write_token=write_token)
    turn, protected = Turn(limits.waiting), token is not None or write_token is not None
    app.state.warm = warm = turn.put(model.warm)
    warm.add_done_callback(_note_failure)
    html = page("page.html")
    card = model_card(model.whole)
    told: dict[str, Any] = {
        "run": model.run.path.name,
        "experiment": model.run.experiment.name,
        "method": model.run.method_name,
        "version": __version__,
        "takes": model.kind,
        "shape": list(model.shape),
        "drawn": model.drawn,
        "learns": {
            "attributes": model.by_attributes and not model.by_sentence,
            "sentence": model.by_sentence,
            "examples": model.by_examples,
        },
        "attributes": [] if model.by_sentence else model.attribute_values(),
        "lasting": protected,
        "result": {name: value for name, value in model.whole.result.items() if name not in ("run", "warnings")},
        "card": card,
    }
    measured.added.set(len(model.added))

    async def in_turn(ask: Callable[[], _T]) -> _T:
        """Ask the model in its thread when it is our turn."""
        try:
            with measured.waiting.track_inprogress():
                return await turn.ask(ask, limits.answer)
        except CrowdedError:
            raise HTTPException(503, "too many questions wait already: ask again later", {"Retry-After": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, "the answer takes too long: send less at a time") from None

    @app.exception_handler(FedUnseenError)
    async def refuse(request: Request, error: FedUnseenError) -> JSONResponse:
        status = 413 if isinstance(error, TooLargeError) else 409 if isinstance(error, ExperimentError) else 422
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # in the log and the metrics alone: the client has left

    @app.exception_handler(RequestValidationError)
    async def refuse_query(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg'][:1].lower()}{first['msg'][1:]}"}, 422)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def playground() -> HTMLResponse:
        return HTMLResponse(html)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference(app.openapi()))

    @app.get("/health", responses={503: {"description": "The model is not loaded yet, or cannot be."}})
    async def health() -> JSONResponse:
        """Say whether the service is ready: `ok`, `loading` (503), or `failed` (503)."""
        status = "loading" if not warm.done() else "failed" if warm.exception() else "ok"
        return JSONResponse({"status": status, "version": __version__}, 200 if status == "ok" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Tell requests, seconds and samples in Prometheus's text format."""
        return Response(generate_latest(measured.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/model")
    async def about() -> dict[str, Any]:
        """Return the run, what it takes, how it learns classes, its numbers, and its card as Markdown."""
        return told

    @app.get("/classes", response_model_exclude_none=True)
    async def list_classes(attributes: bool = False) -> Classes:
        """List the classes that can be the answer."""
        return Classes.model_validate({"classes": await in_turn(lambda: model.classes(attributes))})

    @app.post("/predict", openapi_extra=_SAMPLES, response_model_exclude_none=True)
    async def predict(
        request: Request,
        among: Annotated[Among, Query(description="Rank all classes, unseen and added ones, or added ones.")] = "all",
        top: Annotated[int, Query(ge=1, description="How many classes of each ranking.")] = 5,
        explain: Annotated[bool, Query(description="Say of one sample which attributes speak for a class.")] = False,
    ) -> Answers:
        """Rank classes for files, numbers or texts."""
        parts = await _parts(request)

        def answer() -> list[dict[str, Any]]:
            names, samples = _samples(model, parts)
            rankings = model.rank(samples, among, top)
            answers: list[dict[str, Any]] = [
                {"input": name, "classes": [one._asdict() for one in ranking]}
                for name, ranking in zip(names, rankings, strict=True)
            ]
            if explain and len(samples) == 1:
                why = model.explain(samples, [one.name for one in rankings[0][:3]])
                answers[0]["why"] = {name: [one._asdict() for one in effects] for name, effects in why.items()}
            return answers

        answers = await in_turn(answer)
        measured.samples.inc(len(answers))
        return Answers.model_validate({"answers": answers})

    @app.post("/classes", status_code=201, openapi_extra=_CLASS, response_model_exclude_none=True)
    async def add_class(request: Request) -> ClassEntry:
        """Add a class by its attributes, a few words, or examples; until the service ends, or lasting."""
        parts = await _parts(request)
        name, lasting = parts.get("name"), parts.get("lasting", False)
        if not isinstance(name, str):
            raise DataError("name the class: the field 'name' is missing or no text")
        if lasting not in (True, False, "true", "false"):
            raise DataError("lasting must be true or false")
        lasts = lasting in (True, "true")
        if lasts:
            _may_last(protected)

        def add() -> dict[str, Any]:
            attributes: NDArray[np.float64] | None = None
            examples: NDArray[Any] | None = None
            if isinstance(given := parts.get("attributes"), (dict, list)):
                attributes = model.describe(given)
            elif given is not None:
                raise DataError("attributes must be a list of numbers, or numbers by name")
            words = parts.get("sentence")
            if any(parts.get(what) is not None for what in ("files", "features", "text")):
                examples = _samples(model, parts)[1]
            elif words is None and model.by_sentence:
                words = name
            if attributes is None and isinstance(words, str):
                attributes = model.imagine(words)
            model.add(Added(name, attributes, examples, lasts))
            return model.classes()[-1]

        added = await in_turn(add)
        measured.added.set(len(model.added))
        return ClassEntry.model_validate(added)

    @app.delete("/classes/{name}", status_code=204)
    async def remove_class(name: Annotated[str, Path(max_length=400)]) -> Response:
        """Take an added class away."""

        def remove() -> None:
            found = model.added.get(name)
            if found is None:
                if name in model.run.space.names:
                    raise HTTPException(409, "this class is the run's own: only added classes can be taken away")
                raise HTTPException(404, "there is no added class of this name")
            if found.lasting:
                _may_last(protected)
            model.remove(name)

        await in_turn(remove)
        measured.added.set(len(model.added))
        return Response(status_code=204)

    return app


def _note_failure(warm: Future[None]) -> None:
    if error := warm.exception():
        logging.getLogger("fedunseen.requests").error("the model cannot be loaded: %s", error)


def _may_last(protected: bool) -> None:
    """Only a service that asks for a token changes what outlives it; the guard has checked the token by now."""
    if not protected:
        raise HTTPException(403, "a lasting class needs a service with a token: start it with --token-file")


async def _parts(request: Request) -> dict[str, Any]:
    """Return a request's fields: from JSON, or from a form, whose ``files`` become pairs of name and content."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        form: FormData
        async with request.form(max_files=_FILES, max_fields=8, max_part_size=2**16) as form:
            parts: dict[str, Any] = {name: value for name, value in form.items() if isinstance(value, str)}
            uploads = [one for one in form.getlist("files") if isinstance(one, UploadFile)]
            parts["files"] = [(one.filename or "file", await one.read()) for one in uploads]
        if "attributes" in parts:
            try:
                parts["attributes"] = json.loads(parts["attributes"])
            except (ValueError, RecursionError):
                raise DataError("attributes of a form must be JSON: numbers in order, or numbers by name") from None
        return parts
    if kind != "application/json":
        raise HTTPException(415, "send multipart/form-data with the field files, or application/json")
    try:
        told = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not valid JSON") from None
    if not isinstance(told, dict):
        raise HTTPException(400, "the request must be a JSON object")
    told.pop("files", None)
    return told


def _samples(model: Recogniser, parts: dict[str, Any]) -> tuple[list[str], NDArray[Any]]:
    """Return the samples of a request (n, ...), and what to call each."""
    given = [what for what in ("files", "features", "text") if parts.get(what) is not None]
    if len(given) != 1:
        raise DataError("send samples in one of the fields files, features and text")
    if given == ["files"]:
        if not parts["files"]:
            raise DataError("the field files holds no file")
        names, blocks = [], []
        for name, content in parts["files"]:
            rows = read_file(model, name, content)
            blocks.append(rows)
            names += [name] if len(rows) == 1 else [f"{name}[{i}]" for i in range(len(rows))]
        return names, checked(np.concatenate(blocks))
    if given == ["text"]:
        samples = read_texts(model, parts["text"] if isinstance(parts["text"], list) else [])
    else:
        if not isinstance(parts["features"], list):
            raise DataError("features must be a list of numbers for each sample")
        samples = checked(model.samples(parts["features"]))
    return [f"[{i}]" for i in range(len(samples))], samples
