"""Creates the application from its routes and its middleware."""

from collections import defaultdict

from fastapi import FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.middleware.cors import CORSMiddleware

from paceline import __version__
from paceline.engine.api import AsyncEngine
from paceline.server.context import ServerContext
from paceline.server.errors import answer_errors
from paceline.server.middleware import (
    DOCS_PATH,
    HeadAsGet,
    NumberedResponses,
    PathBelow,
    RequestGuard,
)
from paceline.server.routes.batches import batch_routes
from paceline.server.routes.chat import chat_routes
from paceline.server.routes.completions import completion_routes
from paceline.server.routes.conversations import conversation_routes, item_routes
from paceline.server.routes.embeddings import embedding_routes
from paceline.server.routes.hosting import hosting_routes
from paceline.server.routes.messages import message_routes
from paceline.server.routes.operations import (
    adapter_routes,
    control_routes,
    dashboard_routes,
    probe_routes,
)
from paceline.server.routes.responses import compaction_routes, response_routes
from paceline.server.routes.stored_responses import stored_response_routes
from paceline.server.routes.tokenize import model_routes, token_routes
from paceline.server.routes.upkeep import sleep_routes, weight_routes
from paceline.server.scoreboard import Scoreboard
from paceline.server.settings import ServerSettings
from paceline.server.tasks import PacedRequests
from paceline.server.telemetry.http_metrics import MeasuredRequests
from paceline.text.tokenizer import Tokenizer

ROUTES = (
    adapter_routes,
    chat_routes,
    completion_routes,
    response_routes,
    compaction_routes,
    stored_response_routes,
    conversation_routes,
    item_routes,
    message_routes,
    model_routes,
    token_routes,
    embedding_routes,
    batch_routes,
    probe_routes,
    hosting_routes,
    control_routes,
    sleep_routes,
    weight_routes,
    dashboard_routes,
)
DEFAULTS = ServerSettings()


def create_app(
    engine: AsyncEngine,
    model_name: str,
    tokenizer: Tokenizer,
    settings: ServerSettings = DEFAULTS,
    board: Scoreboard | None = None,
) -> FastAPI:
    """Create an application over an engine, which the caller shuts down.

    `app.state.context` is its `ServerContext`. `board` has the figures of all processes of the
    server, if there are several.
    """
    app = FastAPI(
        title="paceline",
        version=__version__,
        docs_url=DOCS_PATH if settings.docs else None,
        redoc_url=None,
        # The guard checks keys; this lets a reader of the page enter one.
        dependencies=[Security(HTTPBearer(auto_error=False))]
        if settings.docs and settings.keys
        else [],
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    context = app.state.context = ServerContext(engine, model_name, tokenizer, settings, board)
    known: dict[str, set[str]] = defaultdict(set)  # the methods of each path
    for routes in ROUTES:
        router = routes(context)
        app.include_router(router)  # also what it does when the server starts
        for route in router.routes:
            assert isinstance(route, APIRoute)
            known[route.path].update(route.methods or ())
    answer_errors(app, context.retry_after, known)
    context.http_metrics.set_routes([*known, "/openapi.json"])
    app.add_middleware(RequestGuard, settings=settings)
    app.add_middleware(HeadAsGet)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(PacedRequests, turnstile=context.turnstile)
    if settings.enable_request_id_headers:
        app.add_middleware(NumberedResponses)
    app.add_middleware(MeasuredRequests, metrics=context.http_metrics)  # around all others
    if settings.root_path:
        app.add_middleware(PathBelow, root=settings.root_path)
    return app
