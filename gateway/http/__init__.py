"""HTTP: how other programs reach a runtime. Behind the extra ``server``."""

try:
    import fastapi  # noqa: F401 - only whether it is there
    import uvicorn  # noqa: F401 - likewise
except ModuleNotFoundError as missing:
    raise ImportError(f'there is no {missing.name}: run `pip install "understudy[server]"`') from None

from understudy.gateway.http.app import create_app
from understudy.gateway.http.door import Rules
from understudy.gateway.http.feed import Feed
from understudy.gateway.http.hooks import HookHandler
from understudy.gateway.http.server import NotServedError, serve, serving
from understudy.gateway.http.tokens import TokenFileError, Tokens, create_token, owner_token, tokens_of
from understudy.gateway.http.whereabouts import Whereabouts, running_server

__all__ = [
    "Feed",
    "HookHandler",
    "NotServedError",
    "Rules",
    "TokenFileError",
    "Tokens",
    "Whereabouts",
    "create_app",
    "create_token",
    "owner_token",
    "running_server",
    "serve",
    "serving",
    "tokens_of",
]
