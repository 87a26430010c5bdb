"""What clients may ask for, and what they are told otherwise."""

from typing import Any

import pytest

from paceline.core.constraint import MAX_BYTES, MAX_DEPTH, Constraint
from paceline.core.errors import RequestError


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def test_a_schema_and_its_text_are_the_same_constraint() -> None:
    one = Constraint.json({"type": "string", "title": "é"})
    assert one == Constraint.json('{ "type": "string",\n "title": "\\u00e9" }')
    assert hash(one) == hash(Constraint.json(one.value))
    assert one.text == '{"type":"string","title":"é"}'


def test_the_order_of_properties_is_part_of_it() -> None:
    assert Constraint.json({"a": 1, "b": 2}) != Constraint.json({"b": 2, "a": 1})


def test_any_object_is_a_schema() -> None:
    assert Constraint.json_object() == Constraint.json({"type": "object"})
    assert Constraint.json(True).value is True


def test_choices_are_kept_in_order() -> None:
    assert Constraint.choice(["b", "a"]).value == ["b", "a"]


def test_the_older_form_of_a_structural_tag() -> None:
    old = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    new = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [
                {
                    "begin": "<f>",
                    "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                    "end": "</f>",
                }
            ],
        },
    }
    assert Constraint.structural_tag(old) == Constraint.structural_tag(new)


@pytest.mark.parametrize(
    ("build", "value", "message"),
    [
        (Constraint.json, [1], "must be an object or a boolean, not an array"),
        (Constraint.json, None, "must be an object or a boolean, not null"),
        (Constraint.json, "3", "must be an object or a boolean, not a number"),
        (Constraint.json, '{"a": }', "is not JSON: Expecting value at line 1, column 7"),
        (Constraint.json, '{"minimum": ' + "9" * 5000 + "}", "is not JSON: Exceeds the limit"),
        (Constraint.json, '{"minimum": 1e999}', "is not JSON: Out of range float"),
        (Constraint.json, {"a": {1, 2}}, "is not JSON: Object of type set"),
        (Constraint.json, {"minimum": float("nan")}, "is not JSON"),
        (Constraint.json, {"title": "\ud800"}, "character 10 is an unpaired surrogate"),
        (Constraint.json, False, "false allows no document"),
        (Constraint.json, nested(MAX_DEPTH + 2), f"nested deeper than {MAX_DEPTH} levels"),
        (Constraint.json, '{"a":' * 100_000, "is not JSON|nested deeper"),
        (Constraint.json, "[" * 50_000 + "]" * 50_000, f"nested deeper than {MAX_DEPTH} levels"),
        (Constraint.json, {"enum": ["x" * MAX_BYTES]}, "bytes, more than 524,288"),
        (Constraint.json, "x" * (MAX_BYTES + 1), "has 524,289 bytes, more than 524,288"),
        (Constraint.regex, "", "the regex must be a string that is not empty"),
        (Constraint.regex, ["a"], "the regex must be a string"),
        (Constraint.regex, "(" * 65 + ")" * 65, "the regex is nested deeper"),
        (Constraint.regex, "a" * (MAX_BYTES + 1), "the regex has 524,289 bytes"),
        (Constraint.choice, [], "choice must be a list of one or more strings"),
        (Constraint.choice, "ab", "choice must be a list"),
        (Constraint.choice, ["a", 3], "choice 1 must be a string"),
        (Constraint.choice, ["a", ""], "choice 1 must be a string that is not empty"),
        (Constraint.choice, ["a", "b", "a"], "choice has 'a' twice"),
        (Constraint.grammar, None, "the grammar must be a string"),
        (Constraint.structural_tag, [], "the structural tag must be an object"),
        (Constraint.structural_tag, {"structures": []}, "needs `format`, or `structures` and"),
        (
            Constraint.structural_tag,
            {"structures": [{"begin": "a"}], "triggers": []},
            "structure 0 of the structural tag needs `begin` and `end`",
        ),
    ],
)
def test_a_malformed_constraint_is_refused(build: Any, value: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        build(value)


def test_a_schema_at_the_limit_of_depth_is_accepted() -> None:
    assert Constraint.json(nested(MAX_DEPTH + 1)).kind == "json"


class Written:
    """A class with a schema, as pydantic makes them."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "integer"}


def test_a_class_stands_for_its_schema() -> None:
    assert Constraint.json(Written) == Constraint.json({"type": "integer"})


def test_banned_tokens_and_a_budget_are_kept_apart_from_the_grammar() -> None:
    plain = Constraint.json({"type": "integer"})
    guarded = plain.after_reasoning("<a>", "<b>").within(7).without(((1, 2),))
    assert (plain.is_guarded, guarded.is_guarded) == (False, True)
    assert plain.within(7).is_guarded
    assert guarded.of_answer == plain


def test_the_older_form_of_a_structural_tag_is_checked() -> None:
    structure = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    found = Constraint.structural_tag({"structures": [structure], "triggers": ["<f"]})
    assert found.value["format"]["tags"][0]["content"]["json_schema"] == {"type": "integer"}
    with pytest.raises(RequestError, match="needs `format`, or `structures` and `triggers`"):
        Constraint.structural_tag({"structures": [structure]})
    with pytest.raises(RequestError, match="structure 0 of the structural tag needs `begin`"):
        Constraint.structural_tag({"structures": ["<f>"], "triggers": ["<f"]})


def test_a_banned_sequence_has_a_limit() -> None:
    assert Constraint.any_text().without(((1,) * 64,)).banned
    with pytest.raises(RequestError, match="a word of 65 tokens; at most 64"):
        Constraint.any_text().without(((1, 2), (1,) * 65))
