"""The official test suite of JSON Schema, draft 2020-12.

`json_schema_suite.jsonl` has its schemas and documents, without its descriptions. A newer version
is in the source distribution of the Python package `jsonschema`, as `json`.
"""

import json
from pathlib import Path
from typing import Any

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Grammar
from tests.structured.support import accepts, backend, every_backend

FILE = Path(__file__).with_name("json_schema_suite.jsonl")
CASES: list[dict[str, Any]] = [
    json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()
]


@every_backend
def test_no_invalid_document_is_accepted(name: str) -> None:
    """Valid ones may be refused: keys have an order, and objects are closed."""
    supported = accepted = valid = 0
    for case in CASES:
        grammar = compiled(name, case["schema"])
        if grammar is not None:
            supported += 1
            for document in case["invalid"]:
                written = json.dumps(document, ensure_ascii=False)
                assert not accepts(grammar, written), (case, written)
            valid += len(case["valid"])
            accepted += sum(accepts(grammar, json.dumps(one)) for one in case["valid"])
    assert supported > len(CASES) // 4
    assert accepted > valid // 2


def compiled(name: str, schema: object) -> Grammar | None:
    try:
        return backend(name).compile(Constraint.json(schema))
    except RequestError:
        return None
