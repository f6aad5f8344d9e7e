"""The schemas are valid, say what the code does, and every document that a verb prints validates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grader import path, schema

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy"
NAMES = ("path", "fixture", "mutants", "errors", "gates", "config", "wire", "report")


def test_every_schema_is_there_and_valid() -> None:
    assert {p.name for p in schema.SCHEMAS.glob("*.json")} == {f"{name}.schema.json" for name in NAMES}
    for name in NAMES:
        jsonschema.Draft202012Validator.check_schema(
            json.loads((schema.SCHEMAS / f"{name}.schema.json").read_text())
        )


def test_the_path_and_its_schema_agree() -> None:
    rows = [line.split("\t") for line in (ROOT / "path.tsv").read_text().splitlines()]
    for row in rows[1:]:
        assert schema.first_fault("path", dict(zip(rows[0], row, strict=True))) is None, row
    properties = json.loads((schema.SCHEMAS / "path.schema.json").read_text())["properties"]
    assert tuple(properties) == path.COLUMNS
    assert tuple(properties["kind"]["enum"]) == path.KINDS


VERBS: list[tuple[list[str], int]] = [
    ([], 0),
    (["learn"], 0),
    (["check", "T.1"], 0),
    (["check", "T.1", "--case", "stack/total"], 0),
    (["check", "T.2"], 1),
    (["spec", "T.1"], 0),
    (["spec", "T.1", "R2"], 0),
    (["author", "lint"], 0),
    (["author", "coverage"], 0),
    (["author", "mutants"], 0),
    (["author", "build", "--check"], 0),
]


@pytest.mark.parametrize(
    ("args", "code"), VERBS, ids=lambda value: " ".join(value) if isinstance(value, list) else str(value)
)
def test_json_documents_validate(args: list[str], code: int) -> None:
    command = [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), *args, "--json"]
    env = {**os.environ, "OL_COURSE": str(TOY)}
    result = subprocess.run(
        command, cwd=TOY, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == code, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert schema.first_fault("report", document) is None, schema.first_fault("report", document)


def test_messages_name_the_nearest_key() -> None:
    assert schema.first_fault("config", {"format": "1.0", "pth": "x"}) == (
        ("pth",),
        "unknown key 'pth', did you mean 'path'?",
    )
    assert schema.first_fault("config", {"path": "x"}) == ((), "missing key 'format'")
