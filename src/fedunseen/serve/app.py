"""The HTTP service: a run's model, asked by other programs and by its own page."""

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, StrictStr, ValidationError
from pydantic_core import from_json, to_json
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from fedunseen import __version__
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.report.card import model_card
from fedunseen.report.parts import render
from fedunseen.serve.guard import Guard, Limits, MeasuredModel
from fedunseen.serve.inference_queue import InferenceQueue, QueueFullError
from fedunseen.serve.model import Added, Among, AttributeEffect, ClassScore, Recognizer
from fedunseen.serve.uploads import TooLargeError, Upload, checked, is_small, read_files, read_texts

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound="Samples")
_FILES = 256  # in one request
_SMALL = 2**16  # bytes of a request that should be answered as fast as other small ones


class Answer(BaseModel):
    """The ranking of one sample."""

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


class Samples(BaseModel):
    """Samples as a client sends them in JSON; a form has ``files`` instead."""

    features: list[Any] | None = Field(
        None, description="Samples as the run takes them before scaling: a list of numbers for each."
    )
    text: list[Any] | None = Field(None, description="For a run on texts.")


class NewClass(Samples):
    """A class to add, with what describes it or samples of it."""

    name: StrictStr
    attributes: list[Any] | dict[str, Any] | None = Field(
        None, description="All values in order, or by name those that are not 0; a form has them as JSON."
    )
    sentence: StrictStr | None = Field(
        None, description="A few words, where a text encoder described the run's classes."
    )
    lasting: bool = False


_REFUSED = {  # field -> what is wrong with a value of another type
    "features": "features must be a list of numbers for each sample",
    "text": "text must be a list of texts, none of them empty",
    "name": "name the class: the field 'name' is missing or no text",
    "attributes": "attributes must be a list of numbers, or numbers by name",
    "sentence": "sentence must be text",
    "lasting": "lasting must be true or false",
}
_Files = list[Upload]


def _takes(body: type[Samples]) -> dict[str, Any]:
    """Return how the schema describes a request that is either JSON or a form with ``files``."""
    schema = body.model_json_schema()
    own = {name: value for name, value in schema["properties"].items() if name not in Samples.model_fields}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    form = {"type": "object", "required": [*schema.get("required", ()), "files"], "properties": {**own, "files": files}}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


@dataclass(frozen=True)
class Service:
    """A model at work, and what stands around it."""

    model: Recognizer
    limits: Limits
    measured: MeasuredModel
    queue: InferenceQueue
    warm: Future[None]
    protected: bool
    """It asks for a token, which the guard has checked before any request comes here."""
    about: dict[str, Any]

    async def ask(self, question: Callable[[], _T], small: bool = False) -> _T:
        """Ask the model when it is our turn; ``small``: the event loop may ask it."""
        try:
            return await self.queue.ask(question, self.limits.answer, small)
        except QueueFullError:
            raise HTTPException(503, "too many questions wait already: ask again later", {"Retry-After": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, "the answer takes too long: send less at a time") from None

    def may_last(self) -> None:
        """Only a service that asks for a token changes what outlives it."""
        if not self.protected:
            raise HTTPException(403, "a lasting class needs a service with a token: start it with --token-file")


async def _service(request: Request) -> Service:
    served: Service = request.app.state.service
    return served


Served = Annotated[Service, Depends(_service)]


@dataclass(eq=False)
class _Quick:
    """ASGI middleware: ranks what is asked without a query, since FastAPI's way to a function takes as long."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http" or scope["path"] != "/predict" or scope["method"] != "POST" or scope["query_string"]:
            return await self.app(scope, receive, send)
        request, scope["route"] = Request(scope, receive), routes.routes[0]
        try:
            response = await predict(request, request.app.state.service)
        except FedUnseenError as error:
            response = await _refuse(request, error)
        except HTTPException as error:
            response = await http_exception_handler(request, error)
        except ClientDisconnect as error:
            response = await _gone(request, error)
        await response(scope, receive, send)


routes = APIRouter()


@routes.post("/predict", openapi_extra=_takes(Samples), response_model=Answers)
async def predict(
    request: Request,
    served: Served,
    among: Annotated[Among, Query(description="Rank all classes, unseen and added ones, or added ones.")] = "all",
    top: Annotated[int, Query(ge=1, description="How many classes of each ranking.")] = 5,
    explain: Annotated[
        bool, Query(description="For one sample, list the attributes that count for and against a class.")
    ] = False,
) -> Response:
    """Rank classes for files, numbers or texts."""
    model, (body, files) = served.model, await _read(request, Samples)

    def answer() -> list[dict[str, Any]]:  # as Answers has it
        names, samples = _samples(model, body, files)
        rankings = model.rank(samples, among, top)
        answers: list[dict[str, Any]] = [
            {"input": name, "classes": ranking} for name, ranking in zip(names, rankings, strict=True)
        ]
        if explain and len(samples) == 1:
            answers[0]["why"] = model.explain(samples, [item.name for item in rankings[0][:3]])
        return answers

    small = int(request.headers.get("content-length", _SMALL)) < _SMALL  # the guard has read it
    small = small and not explain and body.text is None and (files is None or is_small(model, files))
    answers = await served.ask(answer, small)
    served.measured.samples.inc(len(answers))
    return Response(to_json({"answers": answers}, inf_nan_mode="null"), media_type="application/json")


@routes.get("/", response_class=HTMLResponse, include_in_schema=False)
async def playground() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(render("serve/page.html", {}))


@routes.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the page of the schema."""
    return HTMLResponse(render("serve/reference.html", {"schema": request.app.openapi()}))


@routes.get("/health", responses={503: {"description": "The model is not loaded yet, or cannot be."}})
async def health(served: Served) -> JSONResponse:
    """Return whether the service is ready: ok, loading (503), or failed (503)."""
    status = "loading" if not served.warm.done() else "failed" if served.warm.exception() else "ok"
    return JSONResponse({"status": status, "version": __version__}, 200 if status == "ok" else 503)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(served: Served) -> Response:
    """Return counts of requests, seconds and samples in Prometheus's text format."""
    return Response(generate_latest(served.measured.registry), media_type=CONTENT_TYPE_LATEST)


@routes.get("/model")
async def about(served: Served) -> dict[str, Any]:
    """Return the run, what it takes, how it learns classes, its numbers, and its card as Markdown."""
    return served.about


@routes.get("/classes", response_model_exclude_none=True)
async def list_classes(served: Served, attributes: bool = False) -> Classes:
    """List the classes that can be the answer."""
    return Classes.model_validate({"classes": await served.ask(lambda: served.model.classes(attributes))})


@routes.post("/classes", status_code=201, openapi_extra=_takes(NewClass), response_model_exclude_none=True)
async def add_class(request: Request, served: Served) -> ClassEntry:
    """Add a class by its attributes, a few words, or examples; until the service ends, or lasting."""
    model, (body, files) = served.model, await _read(request, NewClass)
    if body.lasting:
        served.may_last()

    def add() -> dict[str, Any]:
        attributes = None if body.attributes is None else model.describe(body.attributes)
        examples, words = None, body.sentence
        if any(given is not None for given in (files, body.features, body.text)):
            examples = _samples(model, body, files)[1]
        elif words is None and model.by_sentence:
            words = body.name
        if attributes is None and words is not None:
            attributes = model.imagine(words)
        added = Added(body.name, attributes, examples, body.lasting)
        model.add(added)
        return model.entry(added)

    entry = await served.ask(add)
    served.measured.added.set(len(model.added))
    return ClassEntry.model_validate(entry)


@routes.delete("/classes/{name}", status_code=204)
async def remove_class(served: Served, name: Annotated[str, Path(max_length=400)]) -> Response:
    """Remove an added class."""
    model = served.model

    def remove() -> None:
        added = model.added.get(name)
        if added is None:
            if name in model.run.space.names:
                raise HTTPException(409, "this class is the run's own: only added classes can be taken away")
            raise HTTPException(404, "there is no added class of this name")
        if added.lasting:
            served.may_last()
        model.remove(name)

    await served.ask(remove)
    served.measured.added.set(len(model.added))
    return Response(status_code=204)


async def _refuse(request: Request, error: Any) -> JSONResponse:
    status = 413 if isinstance(error, TooLargeError) else 409 if isinstance(error, ExperimentError) else 422
    return JSONResponse({"detail": str(error)}, status)


async def _refuse_query(request: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg'][:1].lower()}{first['msg'][1:]}"}, 422)


async def _gone(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # in the log and the metrics alone: the client has left


def create_app(
    model: Recognizer,
    token: str | None = None,
    local: bool = True,
    limits: Limits | None = None,
    write_token: str | None = None,
) -> FastAPI:
    """Return the service as an ASGI application."""
    limits, measured = limits or Limits(), MeasuredModel()
    app = FastAPI(title="FedUnseen", version=__version__, docs_url=None, redoc_url=None)  # those pages need a network
    app.add_middleware(_Quick)
    app.add_middleware(Guard, token=token, local=local, limits=limits, measured=measured, write_token=write_token)
    app.add_exception_handler(FedUnseenError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.router.routes += routes.routes  # a router within the router takes longer
    queue, protected = InferenceQueue(limits.waiting), token is not None or write_token is not None
    app.state.warm = warm = queue.put(model.warm)

    def note(loaded: Future[None]) -> None:
        if error := loaded.exception():
            logging.getLogger("fedunseen.requests").error("the model cannot be loaded: %s", error)

    warm.add_done_callback(note)
    measured.added.set(len(model.added))
    measured.waiting.set_function(lambda: queue.asked)
    app.state.service = Service(model, limits, measured, queue, warm, protected, _about(model, protected))
    return app


def _about(model: Recognizer, protected: bool) -> dict[str, Any]:
    """Return the answer of ``/model``."""
    return {
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
        "card": model_card(model.whole),
    }


async def _read(request: Request, body: type[_Body]) -> tuple[_Body, _Files | None]:
    """Return a request's fields, from JSON or from a form, and the files of a form."""
    kind, files = request.headers.get("content-type", "").partition(";")[0].strip().lower(), None
    if kind == "multipart/form-data":
        async with request.form(max_files=_FILES, max_fields=8, max_part_size=2**16) as form:
            fields: Any = {name: value for name, value in form.items() if isinstance(value, str)}
            uploads = [item for item in form.getlist("files") if isinstance(item, UploadFile)]
            files = [Upload(item.filename or "file", await item.read()) for item in uploads]
        if "attributes" in fields:
            try:
                fields["attributes"] = json.loads(fields["attributes"])
            except (ValueError, RecursionError):
                raise DataError("attributes of a form must be JSON: numbers in order, or numbers by name") from None
    elif kind == "application/json":
        content = await request.body()
        try:
            try:
                fields = from_json(content)  # four times as fast; what it refuses, json may still read
            except ValueError:
                fields = json.loads(content)
        except (ValueError, RecursionError):
            raise HTTPException(400, "the request is not valid JSON") from None
        if not isinstance(fields, dict):
            raise HTTPException(400, "the request must be a JSON object")
    else:
        raise HTTPException(415, "send multipart/form-data with the field files, or application/json")
    try:
        return body.model_validate(fields), files
    except ValidationError as error:
        fields = [item["loc"][0] for item in error.errors()]
        raise DataError(next(why for field, why in _REFUSED.items() if field in fields)) from None


def _samples(model: Recognizer, body: Samples, files: _Files | None) -> tuple[list[str], NDArray[Any]]:
    """Return the samples of a request (n, ...), and what to call each."""
    if [files, body.features, body.text].count(None) != 2:
        raise DataError("send samples in one of the fields files, features and text")
    if files is not None:
        if not files:
            raise DataError("the field files holds no file")
        names, blocks = [], read_files(model, files)
        for name, rows in zip((file.name for file in files), blocks, strict=True):
            names += [name] if len(rows) == 1 else [f"{name}[{i}]" for i in range(len(rows))]
        return names, np.concatenate(blocks)
    samples = read_texts(model, body.text) if body.text is not None else checked(model.samples(body.features or []))
    return [f"[{i}]" for i in range(len(samples))], samples
