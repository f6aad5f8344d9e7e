"""A process of `ol bench`: one workload of one contender, run when the grader asks, timed in here."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType


def from_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed must not pose as an answer
    here = Path(__file__).resolve().parent
    from_file(here / "engines.py", "engines")  # for workloads that are measured beside an engine
    sys.path.insert(0, str(here.parent))
    from grader import worker, zygote

    zygote.hide()
    asked = sys.stdin.readline()
    if not asked:  # the bench was ended before it began
        return None
    task = json.loads(asked)
    if task["library"]:  # C has no import path: its workloads may use the grader's bench_native
        sys.path.insert(0, str(here.parent))
    files = {name: (path, source, package) for name, path, source, package in task["files"]}
    sys.meta_path.insert(0, worker.Sources(files, task["aliases"]))

    def say(answer: dict[str, object]) -> None:
        talk.write(json.dumps(answer) + "\n")
        talk.flush()

    try:
        what = [task["workload"], task["contender"], *([task["library"]] if task["library"] else [])]
        run = from_file(Path(task["file"]), "workloads").prepare(*what)
    except ImportError as error:
        return say({"missing" if task["contender"] != "impl" else "error": str(error)})
    except Exception as error:
        return say({"error": f"{type(error).__name__}: {error}"})
    gc.collect()
    gc.freeze()
    say({"ready": True})
    for line in sys.stdin:
        repeat = json.loads(line)["repeat"]
        try:
            start, inside = time.perf_counter(), 0.0
            for _ in range(repeat):
                took = run() or 0.0
                if took != took:  # NaN
                    raise RuntimeError("an answer was wrong")
                inside += took
            whole = time.perf_counter() - start
            say({"seconds": (inside or whole) / repeat})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
    return None


try:
    main()
except BrokenPipeError:  # the bench has ended: nobody reads what this would say
    os._exit(1)
