"""The OpenAPI document is the truth: no answer that it does not name, and nothing that makes the server fail."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from _extent import so_far
from _served import MAIN, Served, served
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from understudy.gateway.http.problems import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", so_far(10, 100)))  # for each route, and as many that break its rules
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# The stream has no end, so that no answer to it is ever whole: it is asked below.
ROUTES = [
    ("GET", "/api/sessions"),
    ("GET", "/api/sessions/{key}/transcript"),
    ("POST", "/api/sessions/search"),
    ("POST", "/api/sessions/{key}/spawn"),
    ("GET", "/api/runs"),
    ("GET", "/api/runs/{run_id}"),
    ("POST", "/api/runs/{run_id}/kill"),
    ("POST", "/api/runs/{run_id}/follow-up"),
    ("GET", "/api/dead-letters"),
    ("POST", "/api/dead-letters/{number}/replay"),
    ("POST", "/api/hooks/{harness}/{event}"),
    ("GET", "/api/health"),
    ("POST", "/api/sweep"),
]
STREAM = "GET", "/api/events"


async def understood(
    harness: str, event: str, payload: Mapping[str, Any], *, agent_id: str | None
) -> Mapping[str, Any]:
    """A harness side that knows nothing wrong."""
    return {"harness": harness, "event": event, "fields": len(payload)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("openapi"), hooks=understood) as server:
        server.finished(cleanup="keep")
        yield server


@pytest.fixture(scope="module")
def document(server: Served) -> dict[str, Any]:
    with server.client() as client:
        return dict(client.get("/api/openapi.json").json())


@pytest.fixture(scope="module")
def schema(document: dict[str, Any]) -> Any:
    return schemathesis.openapi.from_dict(document)


@pytest.mark.slow  # requests to each route, of data that the document allows and of data that it does not
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_is_in_the_document(server: Served, schema: Any, method: str, path: str, mode: str) -> None:
    """Generated requests: no 5xx, no status, type or shape that the document does not name."""
    operation = schema[path][method]
    cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    known = st.sampled_from([{}, {"key": MAIN}, {"run_id": _a_run(server)}])

    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(cases, known)
    def ask(case: Any, names: dict[str, str]) -> None:
        if mode == "positive":
            # Names that are there lead further than any that chance would find.
            case.path_parameters.update({name: it for name, it in names.items() if name in case.path_parameters})
        headers = {"authorization": f"Bearer {server.token}"}
        case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS)

    ask()


def _a_run(server: Served) -> str:
    return str(server.runtime.store.runs.find(limit=1).items[0].run_id)


@settings(max_examples=so_far(15, 200), suppress_health_check=list(HealthCheck))
@given(
    query=st.dictionaries(st.sampled_from(["name", "run_id", "session_key", "odd"]), st.text(max_size=8), max_size=3),
    last=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
)
def test_the_stream_begins_or_is_refused_as_documented(server: Served, query: dict[str, str], last: str) -> None:
    """Whatever was the last id, and whatever is wanted."""
    with (
        server.client() as client,
        client.stream("GET", "/api/events", params=query, headers={"last-event-id": last}) as answer,
    ):
        kind = answer.headers["content-type"]
        assert (answer.status_code, kind) in {
            (200, "text/event-stream; charset=utf-8"),
            (422, "application/problem+json"),
        }


def test_every_route_is_asked_and_every_answer_documented(document: dict[str, Any]) -> None:
    """A new route is fuzzed too, and each says all that can come back."""
    routes = {(method.upper(), path): what for path, all_ in document["paths"].items() for method, what in all_.items()}
    assert set(routes) == {*ROUTES, STREAM}
    for what in routes.values():
        answers = what["responses"]
        assert {str(status) for status in MEANINGS} <= set(answers)
        for status, answer in answers.items():
            kinds = list(answer["content"])
            assert kinds == (
                ["application/problem+json"]
                if int(status) in MEANINGS
                else ["text/event-stream"]
                if what["tags"] == ["events"]
                else ["application/json"]
            )
        assert what["description"]


def test_the_page_names_every_route_and_every_answer(document: dict[str, Any]) -> None:
    """And no other."""
    routes = {f"{method.upper()} {path}" for path, all_ in document["paths"].items() for method in all_}
    assert set(re.findall(r"^\| `((?:GET|POST) [^`]+)` \|", PAGE, re.MULTILINE)) == routes
    assert [int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)] == list(MEANINGS)


def test_the_page_names_every_filter(document: dict[str, Any]) -> None:
    """A parameter that nobody reads about is not there."""
    for path, all_ in document["paths"].items():
        for method, what in all_.items():
            row = re.search(rf"^\| `{method.upper()} {re.escape(path)}` \|(.*)$", PAGE, re.MULTILINE)
            assert row is not None
            for parameter in what.get("parameters", ()):
                if parameter["in"] == "query" and parameter["name"] not in {"limit", "cursor"}:
                    assert parameter["name"] in row[1], f"{path}: {parameter['name']}"
