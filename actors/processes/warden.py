"""The warden: parent of one process of ours, there to end it, and everything below it, when the host cannot.

A program of its own: ``python -I -S warden.py CONTROL HOST``. What the process below it does with its streams is
none of its business. It says and hears on the socket CONTROL:

    host:    the order (see `Order` in `launching`), then T: terminate, K: kill
    warden:  started PID TICKS | refused ERRNO cwd|program, then exited STATUS, then ended PID:TICKS:SIGNAL …

It leaves when everything below it is dead: on K, on T once all are gone, or when the host is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from understudy.actors.processes import killing
else:
    # By its own folder: importing the package would import the whole library.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs milliseconds
    import killing

    del sys.path[0]

_AS_THE_HOST_SAYS = float("inf")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Warden:
    """One process, its orphans, and a line to the host."""

    def __init__(self, control: int, host: int) -> None:
        os.set_inheritable(control, False)  # noqa: FBT003 - os has no keyword for it
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._watch_host(host)
        # A signal writes to this pipe, which wakes the poll.
        self._woken, waking = os.pipe()
        for end in (self._woken, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        self._poll.register(self._woken, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)  # its work ends with its tree, and in no other way
        self._prctl = _prctl()
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._leader = 0
        self._exited = False
        self._host_is_gone = False
        self._own_grace = 0.0
        self._grace_until = _AS_THE_HOST_SAYS

    def _watch_host(self, host: int) -> None:
        """The socket closes when the host dies, unless a fork of the host holds it too: so watch the process itself."""
        try:
            self._host = os.pidfd_open(host)
        except (AttributeError, OSError):
            self._host = -1
        else:
            self._poll.register(self._host, select.POLLIN)
        if os.getppid() != host:
            raise SystemExit("the host is gone")

    def serve(self) -> None:
        """One order, from its beginning to its proof."""
        size = int.from_bytes(self._read(4), "big")
        written = self._read(size)
        if not size or len(written) < size:
            return  # the host died before it had said what it wants
        order = written.split(b"\0")
        cwd, self._own_grace, count = order[0], float(order[1]), int(order[2])
        argv, env = order[3 : 3 + count], dict(entry.split(b"=", 1) for entry in order[3 + count :])
        refusal = self._start(argv, env, cwd)
        if refusal:
            self._say(f"refused {refusal}")
            return
        # The streams are the child's alone now: who reads them must see them end.
        nothing = os.open("/dev/null", os.O_RDWR)
        for descriptor in _inherited():
            os.dup2(nothing, descriptor, inheritable=False)
        ticks = killing.started(self._leader)
        self._say(f"started {self._leader} {ticks}")
        stop = b""
        while not stop and not self._host_is_gone:
            stop = self._hear(None)
        if stop == b"K":
            self._grace_until = 0.0
        needed, survivors = killing.end_tree(os.getpid(), self._leader, self._waits)
        needed.setdefault((self._leader, ticks), "none")
        self._reap()
        self._bury()
        for mark in survivors:
            needed[mark] = "ALIVE"
        self._say("ended " + " ".join(f"{pid}:{began}:{how}" for (pid, began), how in needed.items()))

    # -- the child ------------------------------------------------------------------------------------

    def _start(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> str:
        """Start the child; gives why not, or nothing."""
        telling, told = os.pipe()
        self._leader = os.fork()
        if self._leader == 0:
            self._become(argv, env, cwd, told)
        os.close(told)
        refusal = b""
        while part := os.read(telling, 200):
            refusal += part
        os.close(telling)
        if refusal:
            os.waitpid(self._leader, 0)
        return refusal.decode()

    def _become(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, told: int) -> NoReturn:
        what = "cwd"
        try:
            os.setsid()
            # The last resort, should the warden itself be killed.
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                if signal.getsignal(number) is not signal.SIG_DFL:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.chdir(cwd)
            what = "program"
            os.execvpe(argv[0], argv, env)  # noqa: S606 - it is what the host ordered
        except OSError as error:
            os.write(told, f"{error.errno} {what}".encode())
        finally:
            os._exit(127)

    def _reap(self) -> None:
        """Let dead orphans go. The leader stays a zombie until the end: so nobody else can get its number."""
        if not hasattr(os, "waitid"):  # not Linux
            self._reap_leader()
            return
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            if dead.si_pid == self._leader:
                if not self._exited:
                    self._exited = True
                    code = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
                    self._say(f"exited {code}")
                return
            os.waitpid(dead.si_pid, 0)

    @staticmethod
    def _bury() -> None:
        """Let all the dead go, the leader too: in a container there may be nobody who would do it after us."""
        pid = -1
        while pid:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

    def _reap_leader(self) -> None:
        pid, status = (0, 0) if self._exited else os.waitpid(self._leader, os.WNOHANG)
        if pid:
            self._exited = True
            self._say(f"exited {os.waitstatus_to_exitcode(status)}")

    # -- the host -------------------------------------------------------------------------------------

    def _waits(self, seconds: float) -> bool:
        """Pass so much of the grace, or less; False when it is over."""
        if self._host_is_gone and self._grace_until == _AS_THE_HOST_SAYS:
            self._grace_until = time.monotonic() + self._own_grace
        left = self._grace_until - time.monotonic()
        if left <= 0:
            return False
        if self._hear(min(left, seconds)) == b"K":
            self._grace_until = 0.0
        return True

    def _hear(self, seconds: float | None) -> bytes:
        """Wait for a word of the host, or of the kernel about a child."""
        word = b""
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._woken:
                os.read(self._woken, 4096)
                self._reap()
                continue
            if descriptor == self._control:
                word = self._read(1)
            if not word:
                self._host_is_gone = True
                for silent in {self._control, self._host} - {-1}:
                    self._poll.unregister(silent)
                return b""
        return word

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = os.read(self._control, size - len(data))
            except OSError:
                part = b""
            if not part:
                break
            data += part
        return data

    def _say(self, line: str) -> None:
        try:
            os.write(self._control, f"{line}\n".encode())
        except OSError:  # nobody hears it any more
            self._host_is_gone = True


def _inherited() -> list[int]:
    """The descriptors meant for the child: those that survive an exec."""
    found = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - as above
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # the one the listing was read by
            continue
    return found


def _prctl() -> Callable[[int, int], object]:
    """The kernel's own call; where there is none, orphans are not ours and the process outlives a killed warden."""
    if sys.platform != "linux":
        return lambda *_: None
    import ctypes  # noqa: PLC0415 - Linux only, and a fifth of the start

    return lambda option, value: ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    Warden(int(sys.argv[1]), int(sys.argv[2])).serve()
    os._exit(0)  # nothing to tidy up: the kernel is quicker
