"""Starts the worker process. It imports next to nothing, so that this can be the first thing a command does:
the worker loads NumPy while the command loads what it needs itself.
"""

import os
import socket
import sys
from collections.abc import Mapping

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WARM = ("check", "gate")  # the commands that need a worker, unless an adapter takes its place
# A module, not a script: Python keeps its compiled form. It hides ROOT from the code under test.
CODE = "import sys; sys.path.insert(0, sys.argv[1]); import grader.{0} as w; w.main(int(sys.argv[2]))"


def worker_env() -> dict[str, str]:
    """A clean environment: nothing secret, one thread, fixed locale and hash seed."""
    env = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    threads = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
    env |= {f"{name}_NUM_THREADS": "1" for name in threads}
    return env | {
        "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "TZ": "UTC",
        "PYTHONHASHSEED": "0", "PYTHONUTF8": "1",
    }  # fmt: skip


def worker(module: str = "worker", more: Mapping[str, str] | None = None) -> tuple[int, socket.socket]:
    """Start a worker, with `more` in its environment; returns its process id and our end of its channel.

    Levels 2 and 3 of isolation wrap the command line built here.
    """
    ours, theirs = socket.socketpair()
    # -I would ignore PYTHONHASHSEED; the environment is ours alone, so -s and -P are enough.
    command = [sys.executable, "-s", "-P", "-c", CODE.format(module), ROOT, str(theirs.fileno())]
    theirs.set_inheritable(True)
    pid = os.posix_spawn(sys.executable, command, worker_env() | dict(more or {}), setsid=True, file_actions=[
        (os.POSIX_SPAWN_CLOSE, ours.fileno()),
    ])  # fmt: skip
    theirs.close()
    return pid, ours


def early(args: list[str]) -> tuple[int, socket.socket] | None:
    """A worker, if the command line looks as if it will need one."""
    needed = args[:1] and args[0] in WARM and "--help" not in args and "--adapter" not in args
    return worker() if needed else None
