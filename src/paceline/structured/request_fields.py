"""The constraint that the fields of a request ask for, in the forms of OpenAI, Anthropic, vLLM."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError

GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    """The constraint of a request body: `response_format`, `text`, `output_config`,
    `output_format`, `structured_outputs` or `guided_*`.

    Other fields are ignored. Two constraints in one request are an error.
    """
    found = {
        "response_format": from_response_format(fields.get("response_format")),
        "text": from_nested_format("text", fields.get("text")),
        "output_config": from_nested_format("output_config", fields.get("output_config")),
        "output_format": from_flat_format("output_format", fields.get("output_format")),
        "structured_outputs": from_structured_outputs(fields.get("structured_outputs")),
    }
    for name in GUIDED:
        if fields.get(name) is not None:
            kind = name.removeprefix("guided_")
            found[name] = from_structured_outputs({kind: fields[name]})
    given = {name: one for name, one in found.items() if one is not None}
    if len(given) > 1:
        raise RequestError(f"a request has one constraint, not {' and '.join(given)}")
    return next(iter(given.values()), None)


def from_response_format(value: object) -> Constraint | None:
    """OpenAI's `response_format`; None for `{"type": "text"}` and where it is absent."""
    if value is None:
        return None
    form = fields_of("response_format", value)
    match form.get("type"):
        case "text":
            return None
        case "json_object":  # other servers hold it to a schema beside its type
            given = form.get("schema")
            return Constraint.json_object() if given is None else Constraint.json(given)
        case "json_schema":
            schema = schema_of("response_format.json_schema", form.get("json_schema"))
            return Constraint.json(schema)
        case "structural_tag":
            return Constraint.structural_tag(form)
        case other:
            raise RequestError(
                f"response_format has the type {other!r}; "
                "there are text, json_object, json_schema and structural_tag"
            )


def from_nested_format(what: str, value: object) -> Constraint | None:
    """A form with a `format` in it: `text` of OpenAI's responses, Anthropic's `output_config`."""
    if value is None:
        return None
    return from_flat_format(f"{what}.format", fields_of(what, value).get("format"))


def from_flat_format(what: str, value: object) -> Constraint | None:
    """A format whose schema stands beside its type; None for text and where it is absent."""
    if value is None:
        return None
    form = fields_of(what, value)
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            given = form.get("schema")
            return Constraint.json_object() if given is None else Constraint.json(given)
        case "json_schema":
            return Constraint.json(schema_of(what, form))
        case other:
            raise RequestError(
                f"{what} has the type {other!r}; there are text, json_object and json_schema"
            )


def schema_of(what: str, value: object) -> object:
    """The schema of a format.

    `strict` changes nothing: a document is valid against its schema in either case.
    """
    form = fields_of(what, value)
    strict = form.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{what}.strict must be a boolean")
    if not isinstance(form.get("name", ""), str):
        raise RequestError(f"{what}.name must be a string")
    if form.get("schema") is None:
        raise RequestError(f"{what} has no schema")
    return form["schema"]


KINDS: dict[str, Callable[[Any, bool], Constraint]] = {
    "json": lambda value, spaces: Constraint.json(value, any_whitespace=spaces),
    "json_object": lambda _, spaces: Constraint.json_object(any_whitespace=spaces),
    "regex": lambda value, _: Constraint.regex(value),
    "choice": lambda value, _: Constraint.choice(value),
    "grammar": lambda value, _: Constraint.grammar(value),
    "structural_tag": lambda value, _: Constraint.structural_tag(value),
}
# Objects are closed in any case, and `disable_fallback` chooses nothing here.
WITHOUT_EFFECT = ("disable_additional_properties", "disable_fallback")
OPTIONS = {"disable_any_whitespace", "whitespace_pattern", *WITHOUT_EFFECT}


def from_structured_outputs(value: object) -> Constraint | None:
    """vLLM's `structured_outputs`; None where it is absent."""
    if value is None:
        return None
    form = fields_of("structured_outputs", value)
    if unknown := form.keys() - KINDS.keys() - OPTIONS:
        raise RequestError(f"structured_outputs has no field {', '.join(sorted(unknown))}")
    if form.get("whitespace_pattern") is not None:
        raise RequestError(
            "structured_outputs.whitespace_pattern is not supported; use disable_any_whitespace"
        )
    given = [name for name in KINDS if form.get(name) not in (None, False)]
    if len(given) != 1:
        raise RequestError(
            f"structured_outputs needs one of {', '.join(KINDS)}, "
            f"not {' and '.join(given) if given else 'none'}"
        )
    return KINDS[given[0]](form[given[0]], not form.get("disable_any_whitespace"))


def fields_of(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{what} must be an object")
    return dict(cast(Mapping[str, Any], value))
