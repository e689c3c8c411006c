"""Typed identifiers: what names a session or a run, and is safe as a file name."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic_core import core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

# Most file systems allow 255 bytes a name; the rest is left for a suffix such as ".json".
_LONGEST_FILE_NAME = 200


class _Id(str):
    """A validated string: once it exists it is well formed, so nobody downstream checks again."""

    __slots__ = ()

    what: ClassVar[str]
    allowed: ClassVar[str]
    pattern: ClassVar[re.Pattern[str]]

    def __new__(cls, text: object) -> Self:
        if type(text) is cls:
            return text
        if not isinstance(text, str) or cls.pattern.fullmatch(text) is None:
            shown = f"{text[:60]}…" if isinstance(text, str) and len(text) > 60 else text  # noqa: PLR2004
            raise ValueError(f"{cls.what} {shown!r} is not allowed: use {cls.allowed}")
        return str.__new__(cls, text)

    @classmethod
    def made(cls, text: str) -> Self:
        """An id the runtime has put together itself, of parts that are well formed: not looked at again."""
        return str.__new__(cls, text)

    @property
    def file_name(self) -> str:
        """This id as one path component: never '.', '..' or a separator, and different ids stay different."""
        escaped = self.replace(":", "%3A")
        if len(escaped) <= _LONGEST_FILE_NAME:
            return escaped
        digest = hashlib.sha256(self.encode()).hexdigest()
        return f"{escaped[:120]}~{digest[:40]}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: type[Any], _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def accept(value: object, as_text: core_schema.ValidatorFunctionWrapHandler) -> _Id:
            # One that exists is well formed; messages are full of them.
            return value if type(value) is cls else cls(as_text(value))

        return core_schema.no_info_wrap_validator_function(accept, core_schema.str_schema())


class Made:
    """Marks a field for what the runtime made: from JSON it is validated, else only its type is looked at.

    That is done without leaving pydantic's own code. An id's type says that it is well formed.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(handler(source), core_schema.is_instance_schema(source))


class SessionKey(_Id):
    """Names a session, for example ``agent:atlas:main``."""

    __slots__ = ()

    what = "session key"
    allowed = "1 to 200 letters, digits and . _ : @ + -, the first a letter or digit"
    pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}")


class RunId(_Id):
    """Names one run of one sub-agent; given by the runtime, unique across hosts."""

    __slots__ = ()

    what = "run id"
    allowed = "1 to 80 lower-case letters, digits and -, the first a letter or digit"
    pattern = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
