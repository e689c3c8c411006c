"""Secrets are taken out on the way in: no table, index or exported file ever holds them."""

from __future__ import annotations

import json
import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far
from _given import HOST, MAIN, a_failure, a_packet, a_result, a_store, accept, commit, deliver, finish, open_session

from understudy.persistence import Redactor
from understudy.persistence.operations import (
    AcceptRun,
    AppendTurns,
    CompactHistory,
    DeadLetter,
    DeliveryFailed,
    FinishRun,
    OpenSession,
    RecordEvent,
    RequestCancel,
    SaveCheckpoint,
    SetObjective,
    StartRun,
)
from understudy.persistence.redaction import _BLOCK, _BLOCK_END, _RULES
from understudy.protocol import EndReason, Event, RecentFile, RunId, SessionKey
from understudy.protocol.model import ToolCall, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabcd\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("key sk-abcdefghijklmnopqrst done", "key [redacted] done"),
        ("sk_live_abcdefghijklmnop", "[redacted]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123", "[redacted]"),
        ("github_pat_11ABCDEFG0abcdefghijkl", "[redacted]"),
        ("glpat-abcdefghijklmnopqrst", "[redacted]"),
        ("xoxb-1234567890-abcdef", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstu", "[redacted]"),
        (f"jwt {JWT}.", "jwt [redacted]."),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [redacted]"),
        ("password: hunter2hunter2, then", "password: [redacted], then"),
        ("PASSWORD=hunter2", "PASSWORD=[redacted]"),
        ('{"password": "hun ter;2"}', '{"password": "[redacted]"}'),
        ("secret := 'correct horse battery staple'", "secret := '[redacted]'"),
        (r"{\"api_key\": \"abcd\"}", r"{\"api_key\": \"[redacted]\"}"),
        ('"accessToken": "abcdef"', '"accessToken": "[redacted]"'),
        ("SECRET_KEY = 'django-insecure-xyz'", "SECRET_KEY = '[redacted]'"),
        ("aws_secret_access_key=wJalrXUtnFEMI/K7", "aws_secret_access_key=[redacted]"),
        ("postgres://me:pa55word@db/x", "postgres://me:[redacted]@db/x"),
        ("postgres://me:pa:55@w#rd@db/x", "postgres://me:[redacted]@db/x"),
        ("Authorization: Token abcdef123456", "Authorization: [redacted]"),
        ("-H 'Authorization: ApiKey abc def' -v", "-H 'Authorization: [redacted]' -v"),
        (r'{"password": "hun\"ter2", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        (r"password = 'hun\'ter2' # mine", "password = '[redacted]' # mine"),
        ("password          =   hunter2", "password          =   [redacted]"),
        ('password = r"hunter2"', 'password = r"[redacted]"'),
        ('password = """hunter2"""', 'password = """[redacted]"""'),
        ("password=`hunter2`", "password=`[redacted]`"),
        ("export DB_PASS=hunter2", "export DB_PASS=[redacted]"),
        ("AccountKey=abcd/efgh==;EndpointSuffix=x", "AccountKey=[redacted];EndpointSuffix=x"),
        ("SECRET_KEY_BASE=abcdef", "SECRET_KEY_BASE=[redacted]"),
        ("mysql --password hunter2 -h db", "mysql --password [redacted] -h db"),
        ("gh --auth-token 'correct horse' x", "gh --auth-token '[redacted]' x"),
        ("<password>hunter2</password>", "<password>[redacted]</password>"),
        (f"before\n{PEM}\nafter", "before\n[redacted]\nafter"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "[redacted]"),
    ],
)
def test_what_looks_like_a_secret_goes(said: str, kept: str) -> None:
    """Keys by their shape, values by their name; and what is clean stays clean."""
    redactor = Redactor()
    assert redactor.text(said) == kept
    assert redactor.text(kept) == kept


@pytest.mark.parametrize(
    "said",
    [
        "the token was used; tokens: 12",
        "a password manager, a secret garden, an authorization header",
        "task-list sk-short risk-averse-but-long-enough-word",
        "https://example.org:8080/path?x=1",
        "def token(self): return None",
        "the --token option, the --password flag; --api-key --verbose",
        '{"token": null, "password": false}',
        "http://localhost:8080?mail=me@example.org",
        "List<Token> of <token/>",
        "pass: the compass_pass is a passage",
        "the public key -----BEGIN PUBLIC KEY----- abc",
        "input_tokens=100 output_tokens=20",
        "ünïcode 🦊",
        "",
    ],
)
def test_ordinary_words_stay(said: str) -> None:
    """Talking about secrets is no secret."""
    assert Redactor().text(said) == said


def test_a_registered_value_read_from_a_file_needs_no_line_break() -> None:
    """A host registers what the file held, line break included; nobody says it with one."""
    assert Redactor(["tr0ub4dor\n"]).text("it is tr0ub4dor.") == "it is [redacted]."
    assert Redactor(["abc\n", "    "]).text("abc      ") == "abc      "


def test_registered_values_go_wherever_they_stand() -> None:
    """Inside words, in any alphabet, escaped in JSON of either spelling; the longer of two nested ones first."""
    odd, greek = 'pa"ss\\wörd', "ΚΩΔΙΚΟΣ"
    redactor = Redactor(["tr0ub4dor", "tr0ub4dor-and-more", odd, greek, "abc"])
    assert redactor.text("xtr0ub4dorx tr0ub4dor-and-more abc") == "x[redacted]x [redacted] abc"
    assert redactor.text(f"{odd}!") == "[redacted]!"
    assert redactor.text(f"{greek}{greek}Α") == "[redacted][redacted]Α"
    for ascii_only in (True, False):
        document = json.dumps({"note": f"it is {odd}", odd: [greek]}, ensure_ascii=ascii_only)
        assert redactor.text(document) == '{"note": "it is [redacted]", "[redacted]": ["[redacted]"]}'
        assert json.loads(redactor.json(document)) == {"note": "it is [redacted]", "[redacted]": ["[redacted]"]}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"accessToken": "abc", "n": 1}, {"accessToken": "[redacted]", "n": 1}),
        ({"password": 12345678}, {"password": "[redacted]"}),
        ({"password": None, "secret": True, "token": ""}, {"password": None, "secret": True, "token": ""}),
        ({"credentials": {"user": "me", "all": ["a", {"b": "c"}]}},
         {"credentials": {"user": "[redacted]", "all": ["[redacted]", {"b": "[redacted]"}]}}),
        ({"type": "password: hunter2", "kind": "sk-abcdefghijklmnopqrst", "runner": "token=abcdef"},
         {"type": "password: [redacted]", "kind": "[redacted]", "runner": "token=[redacted]"}),
        ({"env": {"OPENAI_KEY": "abc", "DB_PASS": "x y", "PATH": "/bin", "PWD": "/p"}},
         {"env": {"OPENAI_KEY": "[redacted]", "DB_PASS": "[redacted]", "PATH": "/bin", "PWD": "/p"}}),
        ({"max_tokens": 5, "tokens": 7, "cwd": "/p"}, {"max_tokens": 5, "tokens": 7, "cwd": "/p"}),
    ],
)  # fmt: skip
def test_json_is_redacted_by_name_and_stays_json(given: Any, kept: Any) -> None:
    """A name that says secret covers everything below it; a harmless name exempts nothing."""
    assert json.loads(Redactor().json(json.dumps(given))) == kept


def test_nesting_cannot_outrun_the_redactor() -> None:
    """Arguments as deep as a parser takes them are still redacted."""
    depth = 900
    document = '{"a":' * depth + '"password=hunter2"' + "}" * depth
    assert "hunter2" not in Redactor().json(document)


SECRET = "Pl4ntedS3cret"  # noqa: S105 - planted, to be looked for
NAMED = "by-its-n4me"


def _write_it_everywhere(store: Any) -> RunId:
    """A life in which everything that can be said says the secrets."""
    said = f"it is {SECRET}, password={NAMED}"
    packet = a_packet(
        "r1",
        task=said, label=said, objective=said, inherited_context=said, parent_summary=said, domain_knowledge=(said,),
        env={"OPENAI_KEY": NAMED, "HARMLESS": SECRET, "DATABASE_URL": f"db://u:{NAMED}@h/x"},
    )  # fmt: skip
    event = Event("session:sub_agent_progress", 5, packet.session_key, packet.run_id, data={"note": said, "kind": said})
    call = ToolCall(f"call {SECRET}", "login", {"kind": SECRET, "password": NAMED, "more": {"token": [NAMED]}})
    commit(
        store,
        OpenSession(MAIN, 1, title=said),
        OpenSession(packet.session_key, 1),
        AcceptRun(packet, 2, HOST),
        StartRun(packet.run_id, 3, HOST),
        RecordEvent(event),
        AppendTurns(MAIN, 4, (Turn("assistant", said, (call,)), Turn("tool", said, tool_call_id=call.id))),
        SetObjective(MAIN, said),
        CompactHistory(MAIN, 5, said, kept=1),
        SaveCheckpoint(MAIN, 5, said, entities=(said,), constraints=(said,)),
    )
    commit(store, RequestCancel(packet.run_id, 5, said))
    end = a_result(
        packet, said, recent_files=(RecentFile(path=f"/p/{SECRET}"),), missing_outputs=(said,), **a_failure(said)
    )
    commit(store, FinishRun(end, 6, full_output=said * 3))
    commit(store, FinishRun(end, 7))  # too late, and recorded
    commit(store, DeliveryFailed(packet.run_id, said, 9), DeadLetter(8, said, json.dumps({"body": said}), MAIN))
    deliver(store, packet)
    return packet.run_id


def test_no_file_of_the_store_ever_holds_a_secret(tmp_path: Path) -> None:
    """Turns, calls, packets, results, late ends, events, dead letters, checkpoints, exports: byte for byte."""
    store = a_store(tmp_path, secrets=[SECRET])
    run_id = _write_it_everywhere(store)
    path = store.results.export(run_id)
    assert path is not None
    result, record = store.runs.result(run_id), store.runs.get(run_id)
    assert result is not None
    assert record is not None
    # What was stored is still what it was, but for the secrets.
    assert result.output == "it is [redacted], password=[redacted]"
    assert result.recent_files == (RecentFile(path="/p/[redacted]"),)
    assert record.packet.env == {
        "OPENAI_KEY": "[redacted]", "HARMLESS": "[redacted]", "DATABASE_URL": "db://u:[redacted]@h/x",
    }  # fmt: skip
    assert store.runs.events(run_id)[0].data["kind"] == "it is [redacted], password=[redacted]"
    call, answer = (stored.turn for stored in store.transcripts.turns(MAIN))
    assert call.tool_calls[0].id == answer.tool_call_id
    assert call.tool_calls[0].arguments == {
        "kind": "[redacted]", "password": "[redacted]", "more": {"token": ["[redacted]"]},
    }  # fmt: skip
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"store.db", "store.db-wal", "r1.json"}
    for secret in (SECRET, NAMED):
        assert [file.name for file in files if secret.encode() in file.read_bytes()] == []
        assert store.search(secret, agent_id="default") == []
    store.close()
    assert SECRET.encode() not in store.path.read_bytes()


def test_names_of_our_own_are_never_redacted(tmp_path: Path) -> None:
    """Keys and reasons stay what they are, whatever the host registered: the run can still be read."""
    silly = ["agent", "default", "failed", "runner_crash", "observed", "sub_agent_result"]
    with a_store(tmp_path, secrets=silly) as store:
        packet = accept(store, "sk-aaaaaaaaaaaaaaaaaaaaaaaa", session_key=SessionKey("agent:token:abcd"))
        finish(store, packet, recent_files=(RecentFile(path="/p", provenance="observed"),), **a_failure("why"))
        result, record = store.runs.result(packet.run_id), store.runs.get(packet.run_id)
        assert result is not None
        assert record is not None
        assert (result.run_id, result.end_reason, result.session_key) == (
            packet.run_id, EndReason.FAILED, packet.session_key,
        )  # fmt: skip
        assert record.packet.runner == "default"
        assert record.facts.failure is not None
        assert record.facts.failure.kind == "runner_crash"


@pytest.mark.parametrize(("cleanup", "restart"), [("keep", "fail"), ("delete", "resume")])
def test_what_a_restart_decides_by_is_never_redacted(tmp_path: Path, cleanup: str, restart: str) -> None:
    """Even where the host registered the very word."""
    with a_store(tmp_path, secrets=["keep", "fail", "delete", "resume"]) as store:
        accept(store, "r1", cleanup=cleanup, restart=restart)
        record = store.runs.get("r1")
        assert record is not None
        assert (record.packet.cleanup, record.packet.restart) == (cleanup, restart)


def test_redaction_makes_no_line_too_long_to_be_read(tmp_path: Path) -> None:
    """What is taken out may be shorter than what stands for it: a line is then cut, text is not."""
    said = "pwd=abcd " * 450
    lines: dict[str, Any] = {
        "label": said,
        "cwd": said,
        "artifact_refs": (said,),
        "graph": {"graph_id": said, "node_id": "n"},
    }
    with a_store(tmp_path) as store:
        packet = accept(store, "r1", task=said, **lines)
        finish(store, packet, output=said)
        record, result = store.runs.get("r1"), store.runs.result("r1")
        assert record is not None
        assert result is not None
        assert len(record.packet.label) == len(result.label) == 4096
        assert record.packet.task == result.output == "pwd=[redacted] " * 450


def test_an_event_of_broken_text_does_not_take_the_end_down(tmp_path: Path) -> None:
    """Half an emoji in an error message must not keep a run from ending."""
    with a_store(tmp_path) as store:
        packet = accept(store, "r1")
        broken = Event(
            "session:sub_agent_completed", 5, packet.session_key, packet.run_id, data={"error": "\ud83d\x00"}
        )
        assert commit(
            store, StartRun(packet.run_id, 15, HOST), FinishRun(a_result(packet), 20), RecordEvent(broken)
        ) == (True, True, None)
        assert store.runs.events(packet.run_id)[0].data == {"error": "?\x00"}


def test_an_open_store_has_the_registered_values_from_its_first_write(tmp_path: Path) -> None:
    """The title of the first session is redacted like everything else."""
    with a_store(tmp_path, secrets=[SECRET]) as store:
        open_session(store, title=f"about {SECRET}")
        session = store.sessions.get(MAIN)
        assert session is not None
        assert session.title == "about [redacted]"


class _Engine:
    """A backtracking matcher like that of ``re``, over its own parse of a pattern, that counts its steps."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self.text = text.lower() if pattern.flags & re.IGNORECASE else text
        self.tree = list(parser.parse(pattern.pattern.lower() if pattern.flags & re.IGNORECASE else pattern.pattern))
        self.steps = 0

    def scan(self) -> int:
        """The steps of finding every match, as ``sub`` does."""
        place = 0
        while place <= len(self.text):
            end = next(self.match(self.tree, place), None)
            place = place + 1 if end is None else max(end, place + 1)
        return self.steps

    def match(self, tree: list[Any], place: int) -> Iterator[int]:
        """Every end that ``tree`` can reach from ``place``, the engine's first choice first."""
        if not tree:
            yield place
            return
        (kind, value), rest = tree[0], tree[1:]
        if kind is sre.MAX_REPEAT or kind is sre.POSSESSIVE_REPEAT:
            ends = self.repeat(value, place)
            for end in reversed(ends[-1:] if kind is sre.POSSESSIVE_REPEAT else ends):
                self.steps += 1
                yield from self.match(rest, end)
        elif kind is sre.BRANCH:
            for branch in value[1]:
                yield from self.match([*branch, *rest], place)
        elif kind is sre.SUBPATTERN:
            yield from self.match([*value[3], *rest], place)
        elif kind in {sre.ASSERT, sre.ASSERT_NOT, sre.AT}:
            if self.holds(kind, value, place):
                yield from self.match(rest, place)
        elif self.one(kind, value, place):
            yield from self.match(rest, place + 1)

    def holds(self, kind: Any, value: Any, place: int) -> bool:
        """What is true of a place without reading on: a look ahead or back by one, the edge of a word."""
        if kind is sre.AT:
            before, after = (self.text[i : i + 1] if i >= 0 else "" for i in (place - 1, place))
            return (before.isalnum() or before == "_") != (after.isalnum() or after == "_")
        direction, inner = value
        start = place if direction > 0 else place - 1
        found = start >= 0 and next(self.match(list(inner), start), None) is not None
        return bool(found == (kind is sre.ASSERT))

    def repeat(self, value: Any, place: int) -> list[int]:
        """The ends of a greedy repetition, of which each is reached by the last; empty when there are too few."""
        least, most, inner = value
        ends = [place]
        while most is sre.MAXREPEAT or len(ends) <= most:
            end = next(self.match(list(inner), ends[-1]), None)
            if end is None:
                break
            ends.append(end)
        return ends[least:]

    def one(self, kind: Any, value: Any, place: int) -> bool:
        """Whether a single character fits."""
        self.steps += 1
        if place >= len(self.text):
            return False
        code = ord(self.text[place])
        if kind is sre.LITERAL:
            return bool(code == value)
        if kind is sre.NOT_LITERAL:
            return bool(code != value)
        assert kind is sre.IN, kind
        negated = value[0][0] is sre.NEGATE
        return negated != any(_in(kind, item, code) for kind, item in value)


def _in(kind: Any, item: Any, code: int) -> bool:
    if kind is sre.RANGE:
        return bool(item[0] <= code <= item[1])
    if kind is sre.CATEGORY:
        return chr(code).isspace()
    return kind is sre.LITERAL and bool(code == item)


HOSTILE = {
    "starts of a web token": "eyJ-",
    "starts of a web token, long": "eyJhbGciOiJIUzI1NiJ9-",
    "a web token and dots": "eyJabcdefgh.",
    "starts of a key": "sk-",
    "starts of a pat": "github_pat_",
    "open quotes": 'password="',
    "open quotes, escaped": '\\"password\\": \\"',
    "names": "password ",
    "names and signs": "token:=",
    "names and blanks": "token" + " " * 40,
    "escapes in quotes": 'password="\\"',
    "three quotes": 'password="""',
    "prefixed quotes": "password=rb'",
    "flags": "--token ",
    "flags of many words": "--a-a-a-token a",
    "tags": "<password>a",
    "schemes": "authorization: token ",
    "places with many ends": "://a:a@a@",
    "bearers": "bearer ",
    "bearer blanks": "bearer    \t",
    "places": "://",
    "places with a colon": "://a:",
    "places with a name": "://aaaaaaaaaaaaaaaa:",
    "begins": "-----BEGIN RSA PRIVATE KEY-----",
    "almost begins": "-----BEGIN RSA RSA ",
    "ends": "-----END RSA PRIVATE KEY-----",
    "letters": "a",
    "blanks": " ",
    "backslashes": "\\",
}
HOSTILITY = so_far(300, 1_000)
"""Characters: many more than any pattern repeats a bounded number of times."""
PATTERNS = {rule.hints[0]: rule.pattern for rule in _RULES} | {"begin": _BLOCK, "end": _BLOCK_END}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_text_makes_a_pattern_slow(pattern: str, what: str) -> None:
    """Twice the text is twice the steps, counted in an engine that backtracks as ``re`` does."""
    short, long = (
        _Engine(PATTERNS[pattern], (HOSTILE[what] * size)[:size]).scan() for size in (HOSTILITY, 2 * HOSTILITY)
    )
    assert long <= 2.2 * short, f"{short} steps, then {long}"


@pytest.mark.parametrize("what", HOSTILE)
def test_a_megabyte_of_hostile_text_is_a_text_like_any_other(what: str) -> None:
    """It is redacted or kept; that it comes back at all is the claim."""
    text = (HOSTILE[what] * 1_000_000)[:1_000_000]
    assert Redactor().text(text)


def test_the_counting_engine_finds_what_re_finds() -> None:
    """Else its count would mean nothing."""
    for text in (
        "x sk-abcdefghijklmnopqrst y",
        f"jwt {JWT}",
        "password: 'a b'",
        "db://u:pw@h",
        PEM,
        "Bearer abcdefgh1",
        "authorization: token abc def",
        r'password="a\"b" c',
        "password = rb'a b' c",
        "db_pass=hunter2; x",
        "--db-password hunter2 x",
        "<secret>a b</secret>",
        "db://u:p:w@x@h",
    ):
        for pattern in PATTERNS.values():
            engine = _Engine(pattern, text)
            expected = pattern.search(text)
            spans = [(at, next(engine.match(engine.tree, at), None)) for at in range(len(text))]
            found = next(((at, end) for at, end in spans if end is not None), None)
            assert found == (expected and expected.span()), (pattern.pattern, text)
