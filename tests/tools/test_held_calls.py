"""Grammars that hold a model to calls, and parsers that read what they allow."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import BACKENDS
from paceline.structured.request_fields import from_response_format
from paceline.tools.formats.hermes import HermesParser
from paceline.tools.parser import ToolParser
from paceline.tools.registry import TOOL_PARSERS
from paceline.tools.tool_use import ToolUse
from tests.structured.support import accepts, backend, text_of, walk

SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "now": {"type": "boolean"},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["unit", "days"],
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"look": SCHEMA, "now": {"type": "object", "maxProperties": 0}}
PARSERS = sorted(set(TOOL_PARSERS.values()), key=lambda parser: parser.__name__)


def constraint_of(use: ToolUse) -> Constraint:
    form = use.constraint()
    assert form is not None
    found = from_response_format(form)
    assert found is not None
    return found


def check(use: ToolUse, text: str, most: int) -> None:
    parser = use.parser()
    assert parser is not None
    reply = parser.whole(text)
    assert 1 <= len(reply.calls) <= most, text
    assert reply.content is None, text
    for each in reply.calls:
        Draft202012Validator(SCHEMAS[each.name]).validate(json.loads(each.arguments))


@pytest.mark.parametrize("format", PARSERS)
@pytest.mark.parametrize("template", ["", "```json [ARGS]"])
@pytest.mark.parametrize(
    ("choice", "parallel", "most"),
    [
        ("required", True, 99),
        ("required", False, 1),
        ({"type": "function", "function": {"name": "look"}}, True, 1),
    ],
)
def test_calls_that_the_grammar_allows_are_read(
    format: type[ToolParser], template: str, choice: Any, parallel: bool, most: int
) -> None:
    use = ToolUse.read(TOOLS, choice, parallel, format, template)
    grammar = backend("xgrammar").compile(constraint_of(use))
    ended = 0
    for seed in range(4):
        tokens = walk(grammar.matcher(), Random(seed), free=30 * (seed % 2), limit=200)
        if tokens is not None:
            ended += 1
            check(use, text_of(tokens), most)
    assert ended


LONG = {
    "type": "object",
    "properties": {"q": {"type": "string", "maxLength": 3}},
    "required": ["q"],
}
STRICT = [
    {"type": "function", "function": {"name": "look", "parameters": LONG, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
IN_XML = ("Glm45Parser", "Qwen3CoderParser")


@pytest.mark.parametrize("format", PARSERS)
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("parallel", [True, False])
def test_what_xgrammar_does_not_hold_is_held_by_llguidance(
    format: type[ToolParser], choice: str, parallel: bool
) -> None:
    use = ToolUse.read(STRICT, choice, parallel, format)
    if use.constraint() is None:  # without markers, text must be possible too
        return
    constraint = constraint_of(use)
    with pytest.raises(RequestError, match="maxLength"):
        backend("xgrammar").compile(constraint)
    if format.__name__ in IN_XML:
        with pytest.raises(RequestError, match="style"):
            backend("llguidance").compile(constraint)
        return
    grammar = backend("llguidance").compile(constraint)
    ended = 0
    for seed in range(4):
        tokens = walk(grammar.matcher(), Random(seed), free=20 * (seed % 2), limit=200)
        if tokens is not None:
            ended += 1
            parser = use.parser()
            assert parser is not None
            reply = parser.whole(text_of(tokens))
            assert choice == "auto" or len(reply.calls) >= 1
            assert parallel is True or len(reply.calls) <= 1
            for each in reply.calls:
                if each.name == "look":
                    Draft202012Validator(LONG).validate(json.loads(each.arguments))
    assert ended


@pytest.mark.parametrize("library", BACKENDS)
def test_an_output_is_text_calls_or_a_document(library: str) -> None:
    """As of a model whose template does not show tools."""
    use = ToolUse.read(TOOLS, "auto", None, HermesParser).held(None)
    call = '<tool_call>\n{"name": "look", "arguments": {"unit": "C", "days": 3}}\n</tool_call>'
    wrong = call.replace("days", "weeks")
    free = backend(library).compile(constraint_of(use))
    for text, allowed in (("Hi {", True), (f"Hi {call}", True), (call, True), (wrong, False)):
        assert accepts(free, text) == allowed, text
    form = use.calls_or({"type": "object", "properties": {"ok": {"type": "boolean"}}})
    both = from_response_format(form or {})
    assert both is not None
    held = backend(library).compile(both)
    for text, allowed in (('{"ok": true}', True), (call, True), ("Hi", False), (wrong, False)):
        assert accepts(held, text) == allowed, text
