"""Regular expressions that xgrammar reads as Python's `re.fullmatch` does."""

from paceline.core.errors import RequestError

ESCAPES = frozenset("dDwWsSnrtfvxu")  # letters that stand for the same in both


def exact_regex(pattern: object) -> str:
    """The pattern as xgrammar needs it: there a dot matches a line break too.

    xgrammar ignores anchors inside a pattern and takes unknown escapes as letters. Such patterns
    raise a RequestError that says where. Classes like `\\w` contain ASCII only.
    """
    if not isinstance(pattern, str):
        raise RequestError(f"the regex must be a string, not {pattern!r}")
    written: list[str] = []
    groups, in_class, at = 0, False, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            after = pattern[at + 1 : at + 2]
            if after.isalnum() and after not in ESCAPES:
                raise refused_at(at, f"the escape \\{after}")
            written.append(character + after)
            at += 2
            continue
        if not in_class:
            groups += (character == "(") - (character == ")")
            if character == "^" and (groups or pattern[at - 1 : at] not in ("", "|")):
                raise refused_at(at, "^ that is not at the start")
            if character == "$" and (groups or pattern[at + 1 : at + 2] not in ("", "|")):
                raise refused_at(at, "$ that is not at the end")
        written.append("[^\\n]" if character == "." and not in_class else character)
        in_class = character == "[" or (in_class and character != "]")
        at += 1
    return "".join(written)


def refused_at(position: int, what: str) -> RequestError:
    return RequestError(f"xgrammar does not support {what}, at position {position} of the regex")
