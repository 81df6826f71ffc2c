"""The routes, and what they say about themselves in the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import headstart
from headstart.server.errors import ApiError, invalid, unavailable
from headstart.server.guard import Guard
from headstart.server.page import page
from headstart.server.service import Service
from headstart.server.shapes import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ErrorBody,
    TokenizeRequest,
    parse,
)

Body = TypeVar("Body", bound=BaseModel)

_HANG_UP = {"Connection": "close"}  # with an answer given before the body was read: else the rest of it would be taken in
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody, "description": words}
    for code, words in {
        400: "The request is wrong; `param` names the field.",
        401: "The API key is missing or wrong.",
        404: "The model is not served here.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body is not declared as JSON.",
        429: "The queue is full.",
        500: "A bug, or a model that gave no law.",
        503: "Loading, stopping or broken.",
        504: "The request took too long.",
    }.items()
}


def create_app(service: Service) -> FastAPI:
    """The application around one service."""
    # No documentation pages: they would load scripts from elsewhere.
    app = FastAPI(title="headstart", version=headstart.__version__, docs_url=None, redoc_url=None, separate_input_output_schemas=False)
    app.add_middleware(Guard, settings=service.settings, count_refused=service.refused)  # type: ignore[arg-type]
    if service.settings.cors_origins:  # outside the guard, so that a preflight, which carries no key, is answered
        app.add_middleware(CORSMiddleware, allow_origins=list(service.settings.cors_origins), allow_methods=["*"], allow_headers=["*"])
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    _add_generation(app, service)
    _add_small(app, service)
    _add_page(app)
    return app


async def read(request: Request, shape: type[Body], service: Service) -> Body:
    """The body as one of the shapes. Raises ApiError: declared otherwise, too large, too slow, or wrong."""
    limits = service.settings.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page elsewhere can send other kinds without asking first
        raise ApiError(415, f"content-type {kind[:60]!r} is not served: send application/json", "invalid_request_error", headers=_HANG_UP)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise ApiError(
                        413, f"the body is larger than {limits.body_bytes} bytes: send less", "invalid_request_error", headers=_HANG_UP
                    )
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {limits.body_seconds:g} seconds", "invalid_request_error", headers=_HANG_UP
        ) from None
    body = b"".join(parts)
    return await service.work(parse, shape, body) if size > 1 << 16 else parse(shape, body)  # type: ignore[no-any-return]


def _takes(shape: type[BaseModel], app: FastAPI) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads its own body."""
    schema = shape.model_json_schema(ref_template="#/components/schemas/{model}")
    shared = getattr(app.state, "schemas", {})
    app.state.schemas = {**shared, **schema.pop("$defs", {}), shape.__name__: schema}
    reference = {"$ref": f"#/components/schemas/{shape.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=_ERRORS, openapi_extra=_takes(ChatRequest, app))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, whole or as a stream of events."""
        service.refuse_unless_ready()
        return await service.chat(request, await read(request, ChatRequest, service))

    @app.post("/v1/completions", responses=_ERRORS, openapi_extra=_takes(CompletionRequest, app))
    async def completions(request: Request) -> Response:
        """Complete prompts, whole or as a stream of events."""
        service.refuse_unless_ready()
        return await service.complete(request, await read(request, CompletionRequest, service))

    @app.post("/tokenize", responses=_ERRORS, openapi_extra=_takes(TokenizeRequest, app))
    async def tokenize(request: Request) -> JSONResponse:
        """Token ids of a prompt or a conversation."""
        return JSONResponse(await service.tokenize(await read(request, TokenizeRequest, service)))

    @app.post("/detokenize", responses=_ERRORS, openapi_extra=_takes(DetokenizeRequest, app))
    async def detokenize(request: Request) -> JSONResponse:
        """The text of token ids."""
        return JSONResponse(await service.detokenize(await read(request, DetokenizeRequest, service)))

    make = app.openapi

    def document() -> dict[str, Any]:
        made = make()
        made.setdefault("components", {}).setdefault("schemas", {}).update(app.state.schemas)
        return made

    app.openapi = document  # type: ignore[method-assign]


def _add_small(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses={503: _ERRORS[503]})
    async def health() -> JSONResponse:
        """200 when requests are taken."""
        service.refuse_unless_ready()
        return JSONResponse({"status": "ok"})

    @app.get("/v1/models", responses={401: _ERRORS[401]})
    async def models() -> JSONResponse:
        """The one model there is."""
        return JSONResponse({"object": "list", "data": [service.model()]})

    @app.get("/v1/models/{name:path}", responses={401: _ERRORS[401], 404: _ERRORS[404]})
    async def model(name: str) -> JSONResponse:
        """The model by its name."""
        service.check_model(name)
        return JSONResponse(service.model())

    @app.get("/version", responses={401: _ERRORS[401]})
    async def version() -> JSONResponse:
        """The version of headstart."""
        return JSONResponse({"version": headstart.__version__})

    @app.get("/metrics", responses={401: _ERRORS[401], 503: _ERRORS[503]})
    async def metrics() -> Response:
        """Prometheus text."""
        if not hasattr(service, "metrics"):
            raise unavailable(service.state)
        return Response(await service.work(service.metrics.render), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    html, policy = page()

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        return HTMLResponse(html, headers={**headers, "X-Frame-Options": "DENY"})


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    """The client left before its body was read: nobody reads this."""
    return Response(status_code=499)


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 in the shape of all the others."""
    assert isinstance(error, HTTPException)
    known = {404: f"there is no route {request.url.path[:200]!r}", 405: f"{request.method} is not allowed here"}
    wrong = invalid(known.get(error.status_code, str(error.detail)))
    return JSONResponse(wrong.body(), error.status_code, headers=error.headers)
