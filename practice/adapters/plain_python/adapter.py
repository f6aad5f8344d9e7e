"""An adapter for `ol check L8.1 --adapter`: the sampler in plain Python, the standard library alone.

It reads one JSON request a line and writes one JSON answer a line, as spec/protocol.md says.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python3 -I does not put it there
import rng
import sampler
from values import Unsupported, decode, encode

NAMES = {
    "SamplingParams": sampler.SamplingParams, "request_rng": sampler.request_rng, "sample": sampler.sample,
    "apply_penalties": sampler.apply_penalties, "token_logprobs": sampler.token_logprobs,
    "process_logits": sampler.process_logits, "sampling_distribution": sampler.sampling_distribution,
    "sampled_entropy": sampler.sampled_entropy,
    "rng.PCG32": rng.PCG32, "testkit.ScriptedUniforms": rng.ScriptedUniforms,
    "testkit.append": lambda items, item: items.append(item),
    "testkit.overwrite": lambda array, value: array.overwrite(value),
}  # fmt: skip
EVERY = {"seq", "limit_s"}
LOOK = EVERY | {"save", "attrs", "path"}
KEYS = {
    "hello": EVERY | {"unit"}, "reset": EVERY, "bye": EVERY, "observe": EVERY,
    "call": LOOK | {"args", "back"}, "new": LOOK | {"args", "back"}, "do": LOOK | {"args", "back", "on"},
    "get": LOOK | {"on"},
}  # fmt: skip


class Adapter:
    """Named objects, and one answer for every request."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.phase = "call"

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.phase = "call"
        try:
            return self.act(request)
        except Unsupported as what:
            return {"unsupported": str(what)}
        except Exception as error:
            names = [c.__name__ for c in type(error).__mro__ if c not in (object, BaseException, Exception)]
            about = {"class": type(error).__name__, "bases": names, "text": str(error)}
            return {"raises": about, "phase": self.phase}

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = next((kind for kind in KEYS if kind in request), None)
        if kind is None or (unknown := request.keys() - KEYS[kind] - {kind}):
            raise Unsupported(f"unknown key {min(unknown)!r} in {kind}" if kind else "no such request")
        if kind == "hello":
            if request["hello"].partition(".")[0] != "1" or request["unit"] != "sampling":
                raise Unsupported(f"format {request['hello']}, unit {request['unit']}")
            self.objects.clear()
            return {"ok": {}}  # no libm: whose exp this Python was built with is not known here
        if kind == "observe":
            return {"observed": [self.answer(look) for look in request["observe"]]}
        if kind in ("reset", "bye"):
            self.objects.clear()
            return {"ok": True}
        return self.look(kind, request)

    def look(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        self.phase = "lookup"
        name = request[kind]
        owner = self.objects[request["on"]] if "on" in request else None
        target = self.named(name) if owner is None else getattr(owner, name) if kind == "do" else None
        self.phase = "args"
        given = request.get("args", {})
        args = {key: decode(value, self.build, self.objects) for key, value in given.items()}
        back = request.get("back", [])
        records = [key for key in back if isinstance(args[key], sampler.SamplingParams)]
        before = {f"{key} before": copy.deepcopy(args[key]) for key in records}
        self.phase = "call"
        value = getattr(owner, name) if target is None else target(**args)
        self.phase = "result"
        for step in request.get("path", []):
            value = value[step] if isinstance(value, dict) or isinstance(step, int) else getattr(value, step)
        if "save" in request:
            self.objects[request["save"]] = value
            answer: dict[str, Any] = {"ok": True}
        else:
            answer = {"return": encode(value, request.get("attrs"))}
        if back:
            seen = {key: args[key] for key in back} | before
            answer["args"] = {key: encode(item) for key, item in seen.items()}
        return answer

    def build(self, name: str, args: dict[str, Any]) -> Any:
        return self.named(name)(**args)

    def named(self, name: str) -> Any:
        if name not in NAMES:
            raise Unsupported(name)
        return NAMES[name]


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not end up between the answers
    adapter = Adapter()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = {"seq": request["seq"], **adapter.answer(request)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        if "bye" in request:
            return


if __name__ == "__main__":
    main()
