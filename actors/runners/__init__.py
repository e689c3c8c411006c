"""Who does the work of a sub-agent: one contract, and what fulfils it."""

from understudy.actors.runners.contract import RunContext, Runner
from understudy.actors.runners.function import AsyncFunctionContext, FunctionContext, FunctionRunner

__all__ = ["AsyncFunctionContext", "FunctionContext", "FunctionRunner", "RunContext", "Runner"]
