"""Shows tools, their calls and their results as text, where a chat template cannot.

Calls are written as `tools.formats.hermes` reads them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.text.chat_messages import MessageForm, shown_content, text_part

BEGIN, END = "<tool_call>", "</tool_call>"
QUESTION = "What is the answer to my question?"  # behind results, if the user says nothing more

DESCRIPTION = f"""\
You can call functions. Each line here has the name of one, what it does, and the JSON schema of \
its arguments:
{{functions}}

To call a function, write a JSON object with its name and its arguments between these two marks:
{BEGIN}
{{{{"name": "<name>", "arguments": {{{{"<argument>": "<value>"}}}}}}}}
{END}
The next message then has the result. If no function helps, or when you have the results, answer \
with text."""

Message = dict[str, Any]


def description(tools: Sequence[Mapping[str, Any]]) -> str:
    """The description of the tools for the system message."""
    functions = (json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return DESCRIPTION.format(functions="\n".join(functions))


def with_tools(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    form: MessageForm,
    has_system: bool,
) -> list[Message]:
    """The description behind what the system message says, or before what the user says first if
    the template shows no system message."""
    text = shown_content(description(tools), form)
    first, *others = messages
    if first["role"] == "system":
        return [{**first, "content": joined(first["content"], text)}, *others]
    if has_system:
        return [{"role": "system", "content": text}, *messages]
    index = next((at for at, one in enumerate(messages) if one["role"] == "user"), None)
    if index is None:
        return [{"role": "user", "content": text}, *messages]
    asked = messages[index]
    asked = {**asked, "content": joined(text, asked["content"])}
    return [*messages[:index], asked, *messages[index + 1 :]]


def with_written_calls(messages: Sequence[Message], form: MessageForm) -> list[Message]:
    """Calls become text of the assistant, and results text of the user: a template may know no
    other roles. Results that follow each other are one message, with what the user says next, or
    else with a question: small models repeat their call without it."""
    names = called_names(messages)
    found: list[Message] = []
    results: Any = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            results = joined(results, result_of(message, names, form))
            continue
        if results and role != "user":
            found.append(answered(results, form))
        said = written(message, form)
        if results and role == "user":
            said["content"] = joined(results, said["content"])
        found.append(said)
        results = ""
    return [*found, answered(results, form)] if results else found


def called_names(messages: Sequence[Message]) -> dict[object, str]:
    """The names of the functions that were called, by the ids of their calls."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return {call.get("id"): call["function"]["name"] for call in calls}


def result_of(message: Message, names: Mapping[object, str], form: MessageForm) -> Any:
    name = names.get(message.get("tool_call_id")) or message.get("name")
    begin = f"The function {name} returned:" if name else "The function returned:"
    return joined(shown_content(begin, form), message["content"], "\n")


def answered(results: Any, form: MessageForm) -> Message:
    return {"role": "user", "content": joined(results, shown_content(QUESTION, form), "\n")}


def written(message: Message, form: MessageForm) -> Message:
    """A message with its calls as text."""
    if "tool_calls" not in message:
        return dict(message)
    calls: list[str] = []
    for call in message["tool_calls"]:
        function = call["function"]
        name, arguments = json.dumps(function["name"]), str(function["arguments"])
        calls.append(f'{BEGIN}\n{{"name": {name}, "arguments": {arguments}}}\n{END}')
    text = shown_content("\n".join(calls), form)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": joined(message["content"], text, "\n")}


def joined(first: Any, second: Any, between: str = "\n\n") -> Any:
    """Two contents in one, each a text or parts. One that is empty adds nothing."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + between + second
    return [*parts_of(first), *parts_of(between), *parts_of(second)]


def parts_of(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return content
