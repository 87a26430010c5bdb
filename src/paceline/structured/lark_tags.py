"""Structural tags as grammars in Lark, as llguidance reads them."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from paceline.core.constraint import quoted
from paceline.core.errors import RequestError

ANY_TEXT = "/(.|\\n)*/"
SPACE = "[ \\t\\r\\n]"
SUPPORTED = "json_schema, or, tag, tags_with_separator and triggered_tags"

Format = dict[str, Any]


class TagRules:
    """Writes one rule for each part of a structural tag. `prepare` makes a schema ready, or raises
    a RequestError."""

    def __init__(self, prepare: Callable[[object], object]) -> None:
        self._prepare = prepare
        self._rules: list[str] = []

    def grammar(self, format: Any) -> str:
        start = self._format(format)
        return "\n".join([f"start: {start}", *self._rules])

    def _format(self, format: Any) -> str:
        match format:
            case {"type": "json_schema", "json_schema": schema}:
                return self._document(schema, format)
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                return self._tag(begin, content, end)
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(between)}:
                return self._separated(tags, between, format)
            case {"type": "or", "elements": [*parts]}:
                return self._one_of([self._format(part) for part in parts])
            case {"type": "triggered_tags", "tags": [*tags], "triggers": [*triggers]}:
                named = [one for one in triggers if isinstance(one, str) and one]
                return self._triggered(tags, named, format)
            case {"type": str(kind)}:
                raise RequestError(
                    f"the type {kind!r} in structural tags is not supported, or not in this form; "
                    f"there are {SUPPORTED}"
                )
            case _:
                raise RequestError(f"a part of the structural tag has no type: {format!r:.200}")

    def _rule(self, written: str, name: str = "") -> str:
        """Add a rule, and return its name."""
        name = name or f"part_{len(self._rules)}"
        self._rules.append(f"{name}: {written}")
        return name.removesuffix("[lazy]")

    def _document(self, schema: object, form: Format) -> str:
        if form.get("style", "json") != "json":
            raise RequestError(
                f"llguidance cannot hold arguments in the style {form['style']!r}; xgrammar can: "
                "pip install 'paceline[xgrammar]' on the server"
            )
        prepared = self._prepare(schema)
        fields = cast(Format, prepared) if isinstance(prepared, dict) else {}
        options: Format = {"coerce_one_of": False, "lenient": False}
        if (most := form.get("max_whitespace_cnt")) is not None:
            options["whitespace_pattern"] = f"{SPACE}{{1,{int(most)}}}"
        return self._rule(f"%json {json.dumps({**fields, 'x-guidance': options})}")

    def _tag(self, begin: str, content: Any, end: str) -> str:
        parts = [quoted(begin) if begin else "", self._format(content), quoted(end) if end else ""]
        return self._rule(" ".join(filter(None, parts)))

    def _separated(self, tags: Sequence[Any], between: str, form: Format) -> str:
        any_tag = self._one_of([self._format(with_type(tag)) for tag in tags])
        more = f"({quoted(between)} {any_tag})*" if between else f"{any_tag}*"
        several = any_tag if form.get("stop_after_first") else f"{any_tag} {more}"
        return self._rule(several if form.get("at_least_one") else f"({several})?")

    def _triggered(self, tags: Sequence[Any], triggers: Sequence[str], form: Format) -> str:
        text = self._rule(ANY_TEXT, f"TEXT_{len(self._rules)}")
        any_tag = self._one_of([self._after_trigger(text, tag, triggers) for tag in tags])
        if form.get("stop_after_first"):
            return any_tag if form.get("at_least_one") else self._rule(f"{any_tag} | {text}")
        some = "+" if form.get("at_least_one") else "*"
        return self._rule(f"{any_tag}{some} {text}")

    def _after_trigger(self, text: str, tag: Any, triggers: Sequence[str]) -> str:
        """Text up to a trigger, and the rest of the tag that it begins."""
        match tag:
            case {"begin": str(begin), "content": content, "end": str(end)}:
                for trigger in filter(begin.startswith, triggers):
                    first = self._rule(
                        f"{text} {quoted(trigger)}", f"trigger_{len(self._rules)}[lazy]"
                    )
                    rest = self._tag(begin.removeprefix(trigger), content, end)
                    return self._rule(f"{first} {rest}")
            case _:
                pass
        raise RequestError(
            f"a tag needs a begin, a content, an end, and a trigger that its begin starts with: "
            f"{tag!r:.200}"
        )

    def _one_of(self, names: Sequence[str]) -> str:
        if not names:
            raise RequestError("a part of the structural tag is empty")
        return names[0] if len(names) == 1 else self._rule(" | ".join(names))


def with_type(tag: Any) -> Any:
    """The tags of a list may leave their type out."""
    return {"type": "tag", **cast(Format, tag)} if isinstance(tag, dict) else tag
