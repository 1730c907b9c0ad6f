"""The HTTP service: a run's model, asked by other programs and by its own page."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, StrictStr, ValidationError
from pydantic_core import to_json
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fedunseen import __version__
from fedunseen.confidence.measured import ALARM
from fedunseen.core.addresses import PublicAddress
from fedunseen.core.array_cache import keeping_nothing
from fedunseen.core.errors import (
    ArgumentError,
    DataError,
    ExperimentError,
    FedUnseenError,
    RefusedError,
)
from fedunseen.core.files import parse_json
from fedunseen.experiment.known_by import known_by, known_words
from fedunseen.pages.report.card import model_card
from fedunseen.pages.report.parts import render
from fedunseen.pages.serve.guard import READS_ALONE, WRITES, Guard, Limits
from fedunseen.pages.serve.inference_queue import InferenceQueue, QueueFullError
from fedunseen.pages.serve.measured import MeasuredModel, tested_tenths
from fedunseen.pages.serve.model import Added, Among, Answer, Recognizer
from fedunseen.pages.serve.uploads import (
    TooLargeError,
    Upload,
    checked,
    not_too_many,
    read_files,
    read_texts,
)

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound="Samples")
_FILES = 256  # in one request


class Answers(BaseModel):
    """One answer a sample, in order."""

    calibrated: bool
    """Whether probabilities were compared with held-out samples."""
    answers: list[Answer]


class ClassEntry(BaseModel):
    """A class that can be the answer."""

    name: str
    kind: Literal["seen", "unseen", "added"]
    lasting: bool
    """All that is known of it, its examples too, is there when the service starts again."""
    examples: int | None = None
    attributes: list[float] | None = None
    outlook: str | None = None
    """What to expect of a class that was added, and whether its name is close to a known one's."""


class Classes(BaseModel):
    """All classes that can be the answer."""

    classes: list[ClassEntry]


class Samples(BaseModel):
    """Samples as a client sends them in JSON; a form has ``files`` instead."""

    features: list[Any] | None = Field(
        None,
        description="Samples as the run takes them before scaling: a list of numbers for each; of "
        "a run from a table, cells by the names of their columns.",
    )
    text: list[Any] | None = Field(None, description="For a run on texts.")


class NewClass(Samples):
    """A class to add, with what describes it or samples of it."""

    name: StrictStr
    attributes: list[Any] | dict[str, Any] | None = Field(
        None,
        description="All values in order, or by name those that are not 0; a form has them as "
        "JSON.",
    )
    sentence: StrictStr | None = Field(
        None, description="A few words, where a text encoder described the run's classes."
    )
    lasting: bool = False


class Options(BaseModel):
    """The query of ``/predict``.

    It is validated as a whole: FastAPI takes most of a request's time for five parameters.
    """

    among: Among = Field(
        "all", description="Rank all classes, unseen and added ones, or added ones."
    )
    top: int = Field(5, ge=1, description="How many classes of each ranking.")
    explain: bool = Field(
        False,
        description="For one sample, list what speaks for and against a class: attributes, seen "
        "classes, places of a picture.",
    )
    adapt: bool | None = Field(
        None,
        description="Adapt the model to the samples (`serve --adapt`): unset, if the token may "
        "write.",
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Return a set with each answer: the classes that cannot be ruled out. With "
        "0.9 the right one is among them nine times in ten.",
    )


_REFUSED = {  # field -> what is wrong with a value of another type
    "features": "features must be a list of numbers for each sample",
    "text": "text must be a list of texts, none of them empty",
    "name": "name the class: the field 'name' is missing or no text",
    "attributes": "attributes must be a list of numbers, or numbers by name",
    "sentence": "sentence must be text",
    "lasting": "lasting must be true or false",
}
_Files = list[Upload]


def _takes(body: type[Samples], query: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return how the schema describes a request that is either JSON or a form with ``files``, and
    its query.
    """
    schema = body.model_json_schema()
    body_fields = {
        name: value
        for name, value in schema["properties"].items()
        if name not in Samples.model_fields
    }
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "required": [*schema.get("required", ()), "files"],
        "properties": {**body_fields, "files": files},
    }
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": schema}}
    query_fields = query.model_json_schema()["properties"] if query is not None else {}
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": value.pop("description"),
            "schema": value,
        }
        for name, value in query_fields.items()
    ]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


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

    async def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the model when it is our turn; nothing of the question is kept in the cache."""

        def asked() -> _T:
            with keeping_nothing():
                return question()

        try:
            return await self.queue.ask(asked, self.limits.answer)
        except QueueFullError:
            raise HTTPException(
                503, "too many questions wait already: ask again later", {"Retry-After": "1"}
            ) from None
        except TimeoutError:
            raise HTTPException(504, "the answer takes too long: send less at a time") from None

    def may_last(self) -> None:
        """Only a service that asks for a token changes what outlives it."""
        if not self.protected:
            raise HTTPException(
                403, "a lasting class needs a service with a token: start it with --token-file"
            )


async def _service(request: Request) -> Service:
    served: Service = request.app.state.service
    return served


Served = Annotated[Service, Depends(_service)]


routes = APIRouter()


@routes.post("/predict", openapi_extra=_takes(Samples, Options), response_model=Answers)
async def predict(
    request: Request,
) -> Response:
    """Rank classes for files, numbers or texts."""
    served: Service = request.app.state.service
    options = _options(request)
    if options.adapt:
        _check_adapting(served, request)
    moves = request.scope[WRITES] if options.adapt is None else options.adapt
    model, (body, files) = served.model, await _read(request, Samples)

    def answer() -> list[Answer]:
        names, samples = _samples(model, body, files)
        answers = model.rank(samples, options.among, options.top, moves, options.coverage)
        for name, item in zip(names, answers, strict=True):
            item.input = name
        if options.explain and len(samples) == 1:
            best = [item.name for item in answers[0].classes[:3]]
            answers[0].why = model.explain(samples, best)
            only = files[0] if files is not None else None
            picture = only.picture[0] if only is not None and only.is_picture(model) else None
            model.add_reasons(answers[0], samples, picture)
        return answers

    answers = await served.ask(answer)
    served.measured.answered(answers)
    content = {"calibrated": model.calibrated, "answers": [item.content() for item in answers]}
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")


def _check_adapting(served: Service, request: Request) -> None:
    """Refuse to adapt the model for a sender who may only read, or where no model adapts."""
    if not served.model.adapts:
        raise ExperimentError("this model does not adapt: start the service with --adapt")
    if not request.scope[WRITES]:
        raise RefusedError(
            "this token only reads: adapting the model needs the token for writing", READS_ALONE
        )


@routes.get("/", response_class=HTMLResponse, include_in_schema=False)
async def playground() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(render("serve/page.html", {"alarm": ALARM}))


@routes.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the page of the schema."""
    return HTMLResponse(render("serve/reference.html", {"schema": request.app.openapi()}))


@routes.get(
    "/health", responses={503: {"description": "The model is not loaded yet, or cannot be."}}
)
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
    """Return the run, what it takes, how it learns classes, its numbers, and its card as
    Markdown.
    """
    return served.about


@routes.get("/classes", response_model_exclude_none=True)
async def list_classes(served: Served, attributes: bool = False) -> Classes:
    """List the classes that can be the answer."""
    return Classes.model_validate(
        {"classes": await served.ask(lambda: served.model.classes(attributes))}
    )


@routes.post(
    "/classes", status_code=201, openapi_extra=_takes(NewClass), response_model_exclude_none=True
)
async def add_class(request: Request, served: Served) -> ClassEntry:
    """Add a class by its attributes, a few words, or examples; until the service ends, or
    lasting.
    """
    model, (body, files) = served.model, await _read(request, NewClass)
    if body.lasting:
        served.may_last()

    def add() -> dict[str, Any]:
        attributes = None if body.attributes is None else model.describe(body.attributes)
        examples = None
        words = body.sentence
        if any(field is not None for field in (files, body.features, body.text)):
            examples = _samples(model, body, files)[1]
        elif words is None and model.by_sentence:
            words = body.name
        if attributes is None and words is not None:
            attributes = model.imagine(words)
        added = Added(body.name, attributes, examples, body.lasting)
        model.add(added)
        near = model.near_name(body.name)
        outlook = None
        if examples is not None:
            outlook = model.outlook_shown(body.name, len(examples))
        elif words is not None:
            outlook = model.outlook(body.name, words)
        said = ". ".join(filter(None, [near, outlook]))
        return {**model.entry(added), "outlook": said or None}

    entry = await served.ask(add)
    served.measured.added.set(len(model.added))
    return ClassEntry.model_validate(entry)


@routes.post(
    "/classes/{name}/examples", openapi_extra=_takes(Samples), response_model_exclude_none=True
)
async def show_class(
    request: Request, served: Served, name: Annotated[str, Path(max_length=400)]
) -> ClassEntry:
    """Give examples of an added class, or of an unseen class of the run; they count with those of
    before.
    """
    model = served.model
    body, files = await _read(request, Samples)

    def show() -> dict[str, Any]:
        if not _is_unseen(model, name):
            _check_added(served, name)
        model.show(name, _samples(model, body, files)[1])
        return _entry(model, name)

    return ClassEntry.model_validate(await served.ask(show))


@routes.delete("/classes/{name}/examples", status_code=204)
async def hide_class(served: Served, name: Annotated[str, Path(max_length=400)]) -> Response:
    """Take away the examples that were given of an unseen class of the run."""
    model = served.model

    def hide() -> None:
        if name not in model.examples:
            raise HTTPException(404, "no examples of an unseen class of this name were given")
        model.hide(name)

    await served.ask(hide)
    return Response(status_code=204)


def _is_unseen(model: Recognizer, name: str) -> bool:
    """Return whether this is a class of the run that had no training samples."""
    space = model.run.space
    return not model.from_examples_alone and name in {space.names[c] for c in space.unseen}


def _entry(model: Recognizer, name: str) -> dict[str, Any]:
    """Return what the list of classes says of one."""
    return next(entry for entry in model.classes() if entry["name"] == name)


def _check_added(served: Service, name: str) -> None:
    """Refuse to change a class that was not added, or one that lasts where none may."""
    added = served.model.added.get(name)
    if added is None:
        if name in served.model.run.space.names:
            raise HTTPException(
                409,
                "this class is the run's own: only added classes go, and only they and unseen ones "
                "take examples",
            )
        raise HTTPException(404, "there is no added class of this name")
    if added.lasting:
        served.may_last()


@routes.delete("/classes/{name}", status_code=204)
async def remove_class(served: Served, name: Annotated[str, Path(max_length=400)]) -> Response:
    """Remove an added class."""
    model = served.model

    def remove() -> None:
        _check_added(served, name)
        model.remove(name)

    await served.ask(remove)
    served.measured.added.set(len(model.added))
    return Response(status_code=204)


async def _refuse(request: Request, error: Any) -> JSONResponse:
    status = 422
    if error.code == READS_ALONE:
        status = 403
    elif isinstance(error, TooLargeError):
        status = 413
    elif isinstance(error, ExperimentError):
        status = 409
    return JSONResponse({"detail": str(error), "code": error.code}, status)


async def _refuse_query(request: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    detail = f"{first['loc'][-1]}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return JSONResponse({"detail": detail, "code": ArgumentError.code}, 422)


async def _gone(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # in the log and the metrics alone: the client has left


def create_app(
    model: Recognizer,
    token: str | None = None,
    local: bool = True,
    limits: Limits | None = None,
    write_token: str | None = None,
    public: PublicAddress | None = None,
) -> FastAPI:
    """Return the service as an ASGI application."""
    limits = limits or Limits()
    measured = MeasuredModel(tested_tenths(model.run.result))
    app = FastAPI(
        title="FedUnseen",
        version=__version__,
        docs_url=None,  # those pages need a network
        redoc_url=None,
        servers=None if public is None else [{"url": str(public).rstrip("/")}],
    )
    app.add_middleware(
        Guard,
        token=token,
        local=local,
        limits=limits,
        measured=measured,
        write_token=write_token,
        public=public,
    )
    app.add_exception_handler(FedUnseenError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.include_router(routes)
    queue = InferenceQueue(limits.waiting)
    protected = token is not None or write_token is not None
    app.state.warm = warm = queue.put(model.warm)

    def note(loaded: Future[None]) -> None:
        if error := loaded.exception():
            logging.getLogger("fedunseen.requests").error("the model cannot be loaded: %s", error)

    warm.add_done_callback(note)
    measured.added.set(len(model.added))
    measured.waiting.set_function(lambda: queue.open_questions)
    app.state.service = Service(
        model, limits, measured, queue, warm, protected, _about(model, protected)
    )
    return app


def _about(model: Recognizer, protected: bool) -> dict[str, Any]:
    """Return the answer of ``/model``."""
    return {
        "run": model.run.path.name,
        "experiment": model.run.experiment.name,
        "method": model.run.method_name,
        "version": __version__,
        "takes": model.kind,
        "sample": model.run.sample,
        "shape": list(model.shape),
        "columns": model.columns,
        "drawn": model.drawn,
        "learns": {
            "attributes": model.by_attributes and not model.by_sentence,
            "sentence": model.by_sentence,
            "examples": model.by_examples,
        },
        "attributes": [] if model.by_sentence else model.attribute_values(),
        "lasting": protected,
        "calibrated": model.calibrated,
        **({"adapts": True} if model.adapts else {}),
        "known": known_by(model.run),
        "given": known_words(model.run),
        "result": {
            name: value
            for name, value in model.whole.result.items()
            if name not in ("run", "warnings")
        },
        "card": model_card(model.whole),
    }


def _options(request: Request) -> Options:
    """Return the query of a request, or raise a RequestValidationError."""
    try:
        return Options.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def _read(request: Request, body: type[_Body]) -> tuple[_Body, _Files | None]:
    """Return a request's fields, from JSON or from a form, and the files of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: Any
    files = None
    if kind == "multipart/form-data":
        fields, files = await _read_form(request)
        if "attributes" in fields:
            try:
                fields["attributes"] = parse_json(fields["attributes"])
            except ValueError:
                raise DataError(
                    "attributes of a form must be JSON: numbers in order, or numbers by name"
                ) from None
    elif kind == "application/json":
        try:
            fields = parse_json(await request.body())
        except ValueError:
            raise HTTPException(400, "the request is not valid JSON") from None
        if not isinstance(fields, dict):
            raise HTTPException(400, "the request must be a JSON object")
    else:
        raise HTTPException(
            415, "send multipart/form-data with the field files, or application/json"
        )
    try:
        return body.model_validate(fields), files
    except ValidationError as error:
        fields = [item["loc"][0] for item in error.errors()]
        raise DataError(next(why for field, why in _REFUSED.items() if field in fields)) from None


async def _read_form(request: Request) -> tuple[dict[str, Any], _Files]:
    """Return the texts of a form by their names, and its files."""
    try:
        async with request.form(max_files=_FILES, max_fields=8, max_part_size=2**16) as form:
            uploads = [item for item in form.getlist("files") if isinstance(item, UploadFile)]
            files = [Upload(item.filename or "file", await item.read()) for item in uploads]
            return {name: value for name, value in form.items() if isinstance(value, str)}, files
    except ValueError:  # Starlette lets through what its parser of forms raises
        raise HTTPException(
            400, "the request is not a valid form: send multipart/form-data with the field files"
        ) from None


def _samples(
    model: Recognizer, body: Samples, files: _Files | None
) -> tuple[list[str], NDArray[Any]]:
    """Return the samples of a request (n, ...), and what to call each."""
    if [files, body.features, body.text].count(None) != 2:
        raise DataError("send samples in one of the fields files, features and text")
    if files is not None:
        if not files:
            raise DataError("the field files holds no file")
        names = []
        blocks = read_files(model, files)
        for name, rows in zip((file.name for file in files), blocks, strict=True):
            names += [name] if len(rows) == 1 else [f"{name}[{i}]" for i in range(len(rows))]
        return names, np.concatenate(blocks)
    samples = (
        read_texts(model, body.text)
        if body.text is not None
        else checked(model.samples(not_too_many(body.features or [])))
    )
    return [f"[{i}]" for i in range(len(samples))], samples
