"""Formats whose arguments are not JSON: they arrive as JSON, in any split."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.tools.calls import CallDelta, Reply, Tool
from paceline.tools.formats.glm45 import Glm45Parser
from paceline.tools.formats.pythonic import PythonicParser
from paceline.tools.formats.qwen3_coder import Qwen3CoderParser
from paceline.tools.parser import ToolParser
from paceline.tools.written_arguments import (
    is_text,
    json_of,
    property_types,
    python_value,
    types_of,
)
from tests.tools.support import assert_splits_agree, call, parsed

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
        "tags": {"type": "array"},
        "unit": {"type": ["string", "null"]},
        "now": {"type": "boolean"},
    },
}
TOOLS = [Tool("look", parameters=SCHEMA), Tool("now")]
Arguments = dict[str, Any]
VALUES: dict[str, list[Any]] = {
    "city": ["Zürich 🌧️", "", "3", "null", 'a "b" \\ \n\n c\t', "< </para <arg", "[look(q=1)]"],
    "days": [3, -1],
    "where": [{}, {"a": [1, {"b": "} \n"}]}],
    "tags": [[], ["a", 1, None]],
    "unit": [None, "C", "3"],
    "now": [True, False],
}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen(calls: Sequence[tuple[str, Arguments]]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{text_of(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm(calls: Sequence[tuple[str, Arguments]]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{text_of(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def python(calls: Sequence[tuple[str, Arguments]]) -> str:
    listed = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"[{', '.join(listed)}]"


Writer = Callable[[Sequence[tuple[str, Arguments]]], str]
FORMS: dict[str, tuple[type[ToolParser], Writer]] = {
    "qwen3_coder": (Qwen3CoderParser, qwen),
    "glm45": (Glm45Parser, glm),
    "pythonic": (PythonicParser, python),
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_come_as_they_were_written(form: str) -> None:
    parser, write = FORMS[form]
    chance = random.Random(form)
    for _ in range(25):
        calls = [
            (
                "look",
                {
                    key: chance.choice(VALUES[key])
                    for key in chance.sample(list(VALUES), chance.randint(0, len(VALUES)))
                },
            ),
            ("now", {}),
        ][: chance.randint(1, 2)]
        text = f"Let me see.\n{write(calls)} Done."
        reply = assert_splits_agree(lambda: parser(TOOLS), text, tries=2)
        assert [(each.name, json.loads(each.arguments)) for each in reply.calls] == calls
        assert reply.content == "Let me see.\nDone."


@pytest.mark.parametrize("form", FORMS)
def test_a_split_at_every_place_gives_the_same_reply(form: str) -> None:
    parser, write = FORMS[form]
    arguments = {"city": "Zü\nrich", "days": 3, "where": {"a": "b"}}
    text = f"Yes: {write([('look', arguments), ('now', {})])}."
    expected = parsed(lambda: parser(TOOLS), text)
    for place in range(len(text)):
        one = parser(TOOLS)
        found = [*one.push(text[:place]), *one.push(text[place:]), *one.finish()]
        pieces = [each.arguments for each in found if isinstance(each, CallDelta)]
        assert "".join(pieces) == "".join(each.arguments for each in expected.calls)
    for end in range(len(text)):
        assert_splits_agree(lambda: parser(TOOLS), text[:end], tries=1)


@pytest.mark.parametrize("form", ["qwen3_coder", "glm45"])
def test_strings_are_streamed_as_they_arrive(form: str) -> None:
    parser, write = FORMS[form]
    text = write([("look", {"city": "one two three"})])
    one, seen = parser(TOOLS), ""
    for place, character in enumerate(text):
        for delta in one.push(character):
            assert isinstance(delta, CallDelta)
            seen += delta.arguments
        if "<" not in text[text.index("one") : place + 1]:
            assert seen.endswith(text[text.index("one") : place + 1].rstrip("\n"))
    assert seen == '{"city": "one two three"}'


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("qwen3_coder", "<function=look><parameter=city>Zü</param", '{"city": "Zü</param'),
        ("qwen3_coder", "<function=look><parameter=days>3", ""),
        ("qwen3_coder", "<function=look><parameter=days>3</parameter>", '{"days": 3}'),
        ("qwen3_coder", "<function=look><parameter=ci", ""),
        ("glm45", "<tool_call>look<arg_key>city</arg_key><arg_value>Zü", '{"city": "Zü'),
        ("glm45", "<tool_call>look<arg_key>ci", ""),
        ("pythonic", "[look(days=3, city='Zü", '{"days": 3'),
        ("pythonic", "[look(days=3,)", '{"days": 3}'),
        ("pythonic", "[look(city=Zürich)]", '{"city": "Zürich"}'),
        ("pythonic", "<|python_start|>[look(days=3)]<|python_end|>", '{"days": 3}'),
    ],
)
def test_what_is_cut_off_stays_a_call(form: str, text: str, arguments: str) -> None:
    parser, _ = FORMS[form]
    reply = assert_splits_agree(lambda: parser(TOOLS), text)
    assert reply == Reply(calls=(call("look", arguments),))


def test_what_follows_a_list_of_calls_is_content() -> None:
    def make() -> PythonicParser:
        return PythonicParser(TOOLS)

    reply = assert_splits_agree(make, "[look(days=3), 5] and [7]")
    assert reply == Reply(", 5] and [7]", calls=(call("look", '{"days": 3}'),))
    marked = assert_splits_agree(make, "<|python_start|>[look(days=3), x]<|python_end|>.")
    assert marked.content == ", x]<|python_end|>."


@pytest.mark.parametrize("form", FORMS)
def test_one_call_is_reported_if_calls_must_not_be_parallel(form: str) -> None:
    parser, write = FORMS[form]
    reply = parser(TOOLS, parallel=False).whole(write([("look", {"days": 1}), ("now", {})]))
    assert [each.arguments for each in reply.calls] == ['{"days": 1}']


ROOT = {
    "properties": {
        "s": {"type": "string"},
        "n": {"$ref": "#/$defs/number"},
        "circle": {"$ref": "#/properties/circle"},
        "lost": {"$ref": "#/$defs/nothing/there"},
    },
    "$defs": {"number": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (True, set()),
        ({}, set()),
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 0.5}, {"number"}),
        ({"oneOf": [{"type": "object"}, {"const": "a"}]}, {"object", "string"}),
    ],
)
def test_the_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, {}) == types


def test_references_are_followed() -> None:
    assert property_types(ROOT, "n") == {"integer", "null"}
    assert property_types(ROOT, "s") == {"string"}
    for name in ("circle", "lost", "unknown"):
        assert property_types(ROOT, name) == frozenset()
        assert is_text(property_types(ROOT, name))
    assert property_types({}, "s") == frozenset()
    assert not is_text(frozenset({"string", "null"}))


@pytest.mark.parametrize(
    ("text", "types", "written"),
    [
        ("3", {"integer"}, "3"),
        (" 3 ", {"number"}, "3"),
        ("3", {"string", "null"}, '"3"'),
        ("null", {"string", "null"}, "null"),
        ("3", {"string", "number"}, "3"),
        ("True", {"boolean"}, "true"),
        ("None", {"null", "string"}, "null"),
        ("{'a': [1, 'b']}", {"object"}, '{"a": [1, "b"]}'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ("3.5", {"integer"}, "3.5"),  # the model's mistake is passed on
        ("three", {"integer"}, '"three"'),
        ("NaN", {"number"}, '"NaN"'),
        ("1" * 5000, {"integer"}, f'"{"1" * 5000}"'),
        ("[" * 5000, {"array"}, f'"{"[" * 5000}"'),
        ("{1}", {"object"}, '"{1}"'),
    ],
)
def test_a_text_becomes_the_value_that_its_types_allow(
    text: str, types: set[str], written: str
) -> None:
    assert json_of(text, frozenset(types)) == written


def test_literals_of_python_become_json() -> None:
    assert python_value(" {'ü': (1, None)} ") == '{"ü": [1, null]}'
    for text in ("f()", "1e999", "{1, 2}", "b'a'", "(", ""):
        assert python_value(text) is None
