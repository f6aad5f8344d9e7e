"""Why a set-up failed, said in one line. Standard library only, like grader/bootstrap.py."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from grader.errors import Missing, OlError, OwnFault, UsageError

MINE = f"{sys.version_info.major}.{sys.version_info.minor}"

_ROOM = "about 300 MB"
_PYTHONS = "Python 3.11 to 3.14"
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_NO_WRITE = re.compile(r"Read-only file system|Permission denied")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable"
    r"|Connection refused|ConnectTimeoutError|ReadTimeoutError|Read timed out|ProxyError|Tunnel connection"
)
_NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")
_NOISE = re.compile(r"\s*$|Looking in |Ignoring |WARNING: Location|\[notice\]")


def last_lines(lines: Sequence[str]) -> list[str]:
    """The end of what a program said, without pip's remarks about itself; pip's lines can be very long."""
    return [line[:160] for line in lines if not _NOISE.match(line)][-6:]


def foreign(venv: Path) -> UsageError:
    return UsageError(
        ".venv is in the way: ol did not make it and will not touch it",
        str(venv),
        f"mv {venv} {venv}.mine, start again",
    )


def no_venv() -> Missing:
    return Missing(
        "this Python comes without venv",
        os.path.realpath(sys.executable),
        "Debian, Ubuntu: apt install python3-venv; or set OL_PYTHON to another Python",
    )


def child_fault(what: str, status: int, lines: Sequence[str], venv: Path) -> OlError:
    """What stopped Python's venv or pip, judged by its own words."""
    said = "\n".join(lines)
    if _NO_ROOM.search(said):
        return OwnFault(f"{what}: no space left", str(venv), f"free {_ROOM}, then start again")
    if _NO_NETWORK.search(said):
        return Missing(
            f"{what}: this looks like no network", "the package index", "check the connection, start again"
        )
    if "DO NOT MATCH THE HASHES" in said:
        fix = "do not use it; ask whoever runs the index"
        return Missing(f"{what}: a package is not the one that was locked", "requirements.lock", fix)
    if wheel := _NO_WHEEL.search(said):
        no_wheel = f"no wheel of {wheel[1]} for Python {MINE} on this machine"
        return Missing(f"{what}: {no_wheel}", "requirements.lock", f"set OL_PYTHON to {_PYTHONS}")
    if _NO_WRITE.search("\n".join(line for line in lines if line.startswith("ERROR") or "[Errno" in line)):
        return _unwritable(venv.parent, what)
    how = f"was ended by signal {-status}" if status < 0 else f"exit status {status}"
    return Missing(f"{what}: {how}", str(venv), "its last lines are above; start again to retry")


def disk_fault(error: OSError, root: Path) -> OlError:
    """What stopped us ourselves."""
    where = str(error.filename or root)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OwnFault("no space left", where, f"free {_ROOM}, then start again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _unwritable(root, "the set-up cannot write")
    name = Path(where).name
    if error.errno == errno.ENOENT and name in ("requirements.lock", "pyproject.toml"):
        return OwnFault(f"{name} is missing", where, f"restore it: git checkout {name}")
    return OwnFault(f"the set-up failed: {error.strerror or error}", where, "start again")


def _unwritable(root: Path, what: str) -> OwnFault:
    return OwnFault(f"{what}: the folder is not writable", str(root), "clone the project somewhere writable")
