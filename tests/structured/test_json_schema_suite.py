"""The official test suite of JSON Schema. It is collected only where it is at hand.

`JSON_SCHEMA_TEST_SUITE` names its folder, the one with `tests/draft2020-12`. The source
distribution of the Python package `jsonschema` contains it as `json`.
"""

import json
import os
from pathlib import Path
from typing import Any

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Grammar
from tests.structured.support import accepts, backend, every_backend

FOLDER = os.environ["JSON_SCHEMA_TEST_SUITE"]
CASES: list[dict[str, Any]] = [
    {"file": path.stem, **case}
    for path in sorted(Path(FOLDER, "tests", "draft2020-12").glob("*.json"))
    for case in json.loads(path.read_text(encoding="utf-8"))
]


@every_backend
def test_no_invalid_document_is_accepted(name: str) -> None:
    """Valid ones may be refused: keys have an order, and objects are closed."""
    assert CASES, f"{FOLDER} has no tests/draft2020-12"
    supported = 0
    for case in CASES:
        grammar = compiled(name, case["schema"])
        if grammar is not None:
            supported += 1
            for one in case["tests"]:
                if not one["valid"]:
                    document = json.dumps(one["data"], ensure_ascii=False)
                    assert not accepts(grammar, document), (case, document)
    assert supported > len(CASES) // 4


def compiled(name: str, schema: object) -> Grammar | None:
    try:
        return backend(name).compile(Constraint.json(schema))
    except RequestError:
        return None
