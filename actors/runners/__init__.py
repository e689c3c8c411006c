"""Who does the work of a sub-agent: one contract, and what fulfils it."""

from understudy.actors.runners.contract import RunContext, Runner
from understudy.actors.runners.function import AsyncFunctionContext, FunctionContext, FunctionRunner
from understudy.actors.runners.model import ModelRunner
from understudy.actors.runners.process import ProcessRunner

__all__ = [
    "AsyncFunctionContext",
    "FunctionContext",
    "FunctionRunner",
    "ModelRunner",
    "ProcessRunner",
    "RunContext",
    "Runner",
]
