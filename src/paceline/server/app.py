"""Puts the application together from its routes and its border."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from paceline import __version__
from paceline.engine.api import AsyncEngine
from paceline.server.context import Desk
from paceline.server.errors import answer_errors
from paceline.server.middleware import Border
from paceline.server.routes.chat import chat_routes
from paceline.server.routes.completions import completion_routes
from paceline.server.routes.operations import control_routes, probe_routes
from paceline.server.routes.responses import response_routes
from paceline.server.routes.tokenize import model_routes, token_routes
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer

ROUTES = (
    chat_routes,
    completion_routes,
    response_routes,
    model_routes,
    token_routes,
    probe_routes,
    control_routes,
)
DEFAULTS = ServerSettings()


def create_app(
    engine: AsyncEngine,
    model_name: str,
    tokenizer: Tokenizer,
    settings: ServerSettings = DEFAULTS,
) -> FastAPI:
    """An application over an engine that stays the caller's; `app.state.desk` is its `Desk`."""
    app = FastAPI(title="paceline", version=__version__, docs_url=None, redoc_url=None)
    desk = app.state.desk = Desk(engine, model_name, tokenizer, settings)
    for routes in ROUTES:
        app.include_router(routes(desk))
    answer_errors(app, desk.retry_after)
    app.add_middleware(Border, settings=settings)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app
