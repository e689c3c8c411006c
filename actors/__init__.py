"""Who acts: the runtime, its actors, and the clock they live by."""

from understudy.actors._kernel.actor import LoopActor, MessageActor
from understudy.actors._kernel.exits import ActorExited, DeadLetter, HandlerEscapedError
from understudy.actors.clock import Clock, SystemClock
from understudy.actors.config_file import load_config
from understudy.actors.runtime import AsyncRuntime, Runtime

__all__ = [
    "ActorExited",
    "AsyncRuntime",
    "Clock",
    "DeadLetter",
    "HandlerEscapedError",
    "LoopActor",
    "MessageActor",
    "Runtime",
    "SystemClock",
    "load_config",
]
