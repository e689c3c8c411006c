"""Who acts: the runtime, its sessions and sub-agents, and the clock they live by."""

from understudy.actors._kernel.actor import LoopActor, MessageActor
from understudy.actors._kernel.exits import ActorExited, HandlerEscapedError
from understudy.actors.clock import Clock, SystemClock
from understudy.actors.config_file import load_config
from understudy.actors.control import ChildReport, KillReport
from understudy.actors.errors import NotSentError, SessionBusy, SessionClosedError, SteerError, UnknownRunError
from understudy.actors.faces import AsyncSession, Session
from understudy.actors.handles import AsyncRunHandle, RunHandle
from understudy.actors.runners import FunctionRunner, ModelRunner, ProcessRunner, Runner
from understudy.actors.runtime import AsyncRuntime, Runtime
from understudy.actors.tools import tool

__all__ = [
    "ActorExited",
    "AsyncRunHandle",
    "AsyncRuntime",
    "AsyncSession",
    "ChildReport",
    "Clock",
    "FunctionRunner",
    "HandlerEscapedError",
    "KillReport",
    "LoopActor",
    "MessageActor",
    "ModelRunner",
    "NotSentError",
    "ProcessRunner",
    "RunHandle",
    "Runner",
    "Runtime",
    "Session",
    "SessionBusy",
    "SessionClosedError",
    "SteerError",
    "SystemClock",
    "UnknownRunError",
    "load_config",
    "tool",
]
