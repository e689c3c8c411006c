"""Who is let in: hostile hosts, origins and tokens are not, whatever they are combined with."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import stat
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from _served import PATIENCE, Served, served

from understudy.gateway.http import NotServedError, TokenFileError, create_token, owner_token, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ELSEWHERE = "http://127.0.0.1:9"
FRIEND = "https://desk.example"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("door"), origins=[FRIEND]) as server:
        yield server


def ask(server: Served, *headers: tuple[str, str], method: str = "GET", path: str = "/api/sessions") -> tuple[int, str]:
    """Exactly these headers and no others, as a hostile client would send them; gives the status and the answer."""
    place = urlsplit(server.url)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return int(answer.split(b" ", 2)[1]), answer.decode()


HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost",
    "127.0.0.1:9",
    "evil.example:{port}",
    "127.1:{port}",
    "",
]
ORIGINS = [
    "null",
    "http://evil.example",
    "http://evil.example:{port}",
    "https://127.0.0.1:{port}",
    "file://",
    ELSEWHERE,
]
TOKENS = ["", "Bearer ", "Bearer x", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {short}", "Bearer  {token}"]
GOOD = "127.0.0.1:{port}", None, "Bearer {token}"
HOSTILE = [
    *((host, None, GOOD[2]) for host in HOSTS),
    *((GOOD[0], origin, GOOD[2]) for origin in ORIGINS),
    *((GOOD[0], None, token) for token in TOKENS),
    *itertools.islice(itertools.product(HOSTS, ORIGINS, TOKENS), 0, None, 11),
]


@pytest.mark.parametrize(("host", "origin", "token"), HOSTILE)
def test_nothing_hostile_is_let_in(server: Served, host: str, origin: str | None, token: str) -> None:
    """One wrong header is enough, and a right token does not make up for it."""
    known = {"port": urlsplit(server.url).port, "token": server.token, "short": server.token[:-1]}
    headers = [("Host", host.format(**known)), ("Authorization", token.format(**known))]
    if origin is not None:
        headers.append(("Origin", origin.format(**known)))
    status, answer = ask(server, *headers)
    assert status in {400, 401, 403}, answer
    assert server.token not in answer


def test_there_are_more_than_forty_of_them() -> None:
    """So many were asked for."""
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", ["host", "origin", "authorization"])
def test_a_header_that_comes_twice_is_hostile(server: Served, name: str) -> None:
    """Whoever stands between might have looked at the other one."""
    port = urlsplit(server.url).port
    own = {"host": f"127.0.0.1:{port}", "origin": server.url, "authorization": f"Bearer {server.token}"}
    assert ask(server, *own.items())[0] == 200
    assert ask(server, *own.items(), (name, own[name]))[0] in {400, 401, 403}
    assert ask(server, *((key, value) for key, value in own.items() if key != name))[0] == (
        200 if name == "origin" else 400 if name == "host" else 401
    )


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/api/openapi.json", "/api/health", "/api/nowhere"])
def test_without_a_token_nothing_is_told_apart(server: Served, path: str) -> None:
    """Not even which routes there are."""
    status, answer = ask(server, ("Host", urlsplit(server.url).netloc), path=path)
    assert status == 401
    assert "www-authenticate: bearer" in answer.lower()


def test_names_of_the_loopback_are_allowed(server: Served) -> None:
    """As people write them; a page of this server's own too."""
    port = urlsplit(server.url).port
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", f"127.0.0.1:{port}"):
        token = ("Authorization", f"bearer {server.token}")
        assert ask(server, ("Host", host), token, ("Origin", f"http://localhost:{port}"))[0] == 200


def test_only_a_page_that_is_named_may_read_answers(server: Served) -> None:
    """By its own name, never by a wildcard; and only it may ask what it may send."""
    host, token = ("Host", urlsplit(server.url).netloc), ("Authorization", f"Bearer {server.token}")
    wish = ("Access-Control-Request-Method", "POST")
    status, answer = ask(server, host, token, ("Origin", FRIEND))
    assert status == 200
    assert f"access-control-allow-origin: {FRIEND}" in answer
    status, answer = ask(server, host, ("Origin", FRIEND), wish, method="OPTIONS")
    assert status == 200
    assert f"access-control-allow-origin: {FRIEND}" in answer
    for headers in ([("Origin", "http://evil.example"), wish], [wish], [("Origin", FRIEND)]):
        status, answer = ask(server, host, *headers, method="OPTIONS")
        assert status in {401, 403}
        assert "access-control-allow" not in answer
    assert "access-control" not in ask(server, host, token)[1]


# -- tokens -------------------------------------------------------------------------------------------------------


def test_only_the_hash_of_a_token_is_kept_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    """The one for everything stands beside it, in a file of its own."""
    database = tmp_path / "agents.db"
    file = owner_token(database)
    bound = create_token(database, agent_id="atlas")
    tokens = tokens_of(database)
    kept = [json.loads(line) for line in tokens.path.read_text().splitlines()]
    assert [one["agent_id"] for one in kept] == [None, "atlas"]
    assert bound not in tokens.path.read_text()
    for path in (file, tokens.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert owner_token(database).read_text() == file.read_text()  # the same at every start


def test_a_token_counts_from_when_it_is_made_until_it_is_taken_out(server: Served) -> None:
    """Without a restart."""
    token = create_token(server.database, agent_id="atlas")
    path = tokens_of(server.database).path
    with server.client(token) as client:
        assert client.get("/api/health").status_code == 200
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        assert client.get("/api/health").status_code == 401


def test_a_token_file_that_others_can_read_or_that_is_none_lets_nobody_in(tmp_path: Path) -> None:
    """And says what to do about it."""
    database = tmp_path / "agents.db"
    owner_token(database)
    path = tokens_of(database).path
    path.chmod(0o640)
    with pytest.raises(TokenFileError, match=r"chmod 600"):
        tokens_of(database).grant("x")
    with pytest.raises(TokenFileError, match=r"chmod 600"):
        create_token(database)
    path.chmod(0o600)
    path.write_text('{"token_hash": 1}\n')
    with pytest.raises(TokenFileError, match=r"line 1 of .* is no token: write"):
        tokens_of(database).grant("x")
    with pytest.raises(ValueError, match=r"agent_id ' ' is not allowed: name an agent"):
        create_token(database, agent_id=" ")


def test_a_server_whose_tokens_became_unreadable_lets_nobody_in(tmp_path: Path) -> None:
    """Rather than everybody, or falling over."""
    with served(tmp_path) as server, server.client() as client:
        assert client.get("/api/health").status_code == 200
        tokens_of(server.database).path.write_text("{}\n")
        assert client.get("/api/health").status_code == 401


def test_no_token_is_ever_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where it is, is; not when it is used, and not when it fails."""
    caplog.set_level(logging.DEBUG)
    with served(tmp_path) as server, server.client() as client, server.client(server.token + "x") as stranger:
        assert client.get("/api/health").status_code == 200
        assert stranger.get("/api/health").status_code == 401
        token = server.token
    assert f"{tmp_path / 'agents.db'}.token" in caplog.text
    assert token not in caplog.text


# -- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("0.0.0.0", "can be reached from elsewhere: allow that explicitly, or use 127.0.0.1"),  # noqa: S104
        ("example.com", "host 'example.com' is not allowed: use an IP address"),
        ("::", "can be reached from elsewhere"),
    ],
)
def test_another_address_than_the_loopbacks_must_be_wanted(tmp_path: Path, host: str, words: str) -> None:
    """A slip of the pen opens nothing."""
    with pytest.raises(NotServedError, match=words), served(tmp_path, host=host):
        pass


def test_an_address_that_was_wanted_still_asks_for_the_token(tmp_path: Path) -> None:
    """And knows no name but those it was given."""
    names = ["agents.example:80"]
    with served(tmp_path, host="0.0.0.0", remote=True, names=names) as server:  # noqa: S104
        token = ("Authorization", f"Bearer {server.token}")
        assert ask(server, ("Host", "agents.example:80"))[0] == 401
        assert ask(server, ("Host", "agents.example:80"), token)[0] == 200
        assert ask(server, ("Host", f"localhost:{urlsplit(server.url).port}"), token)[0] == 403
