"""The OpenAPI document: what FastAPI writes, with our problems, our token and our spelling in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from understudy.gateway.http.problems import MEANINGS, MEDIA_TYPE, Problem
from understudy.protocol import Spawn, SubAgentResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

_REFERENCE = "#/components/schemas/{model}"
# Pydantic's regular expressions know Unicode's classes by name; JSON Schema's need not.
_CLASSES = {r"\\p{Cc}": r"\\x00-\\x1f\\x7f-\\x9f", r"\\p{Zl}": r"\\u2028", r"\\p{Zp}": r"\\u2029"}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": meaning,
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}},
    }
    for status, meaning in MEANINGS.items()
}
"""Every route may give any of these."""


def documented(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The document of ``app``, made once."""
    written = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            # Spawns and results may be spelt in two ways; the document shows the one that all the rest has.
            _, ours = models_json_schema(
                [(Spawn, "validation"), (SubAgentResult, "serialization"), (Problem, "serialization")],
                by_alias=False,
                ref_template=_REFERENCE,
            )
            document = written()
            document["components"]["schemas"].update(ours["$defs"])
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
            text = json.dumps(document)
            for theirs, plain in _CLASSES.items():
                text = text.replace(theirs, plain)
            app.openapi_schema = json.loads(text)
        return app.openapi_schema

    return document
