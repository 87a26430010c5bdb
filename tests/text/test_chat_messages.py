"""Conversations with tools, as clients send them, in templates like those of well-known models."""

import re
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from paceline.core.errors import RequestError
from paceline.text.chat_messages import MessageForm, images_of, plain, plain_messages
from paceline.text.chat_template import ChatTemplate
from tests.text import tool_templates
from tests.text.support import byte_level

TEMPLATES = {
    "qwen": tool_templates.QWEN,
    "llama": tool_templates.LLAMA,
    "mistral": tool_templates.MISTRAL,
    "newer mistral": tool_templates.NEWER_MISTRAL,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
ARGUMENTS = {"q": "Größe", "n": [1, {"a": None}]}


def conversation(arguments: object, content: str | None, **unused: None) -> list[dict[str, Any]]:
    """A call and its result; `unused` are fields that clients send as null."""
    call = {"id": "abc456789", "type": "function", "function": {"name": "look"}}
    call["function"] = {"name": "look", "arguments": arguments}
    return [
        {"role": "user", "content": "Look!", **unused},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": '{"found": true}', "tool_call_id": "abc456789", **unused},
        {"role": "assistant", "content": "There it is.", **unused},
        {"role": "user", "content": "Again.", **unused},
    ]


def as_transformers(template: str, messages: list[dict[str, Any]]) -> str:
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    rendered = made.apply_chat_template(
        messages, tools=[TOOL], add_generation_prompt=True, tokenize=False
    )
    assert isinstance(rendered, str)
    return rendered


def rendered(template: str, messages: list[dict[str, Any]]) -> str:
    made = ChatTemplate(template, bos_token="<s>", eos_token="</s>")
    return made.render(messages, tools=[TOOL])


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_of_clients_are_rendered_as_in_transformers(name: str) -> None:
    expected = as_transformers(TEMPLATES[name], conversation(ARGUMENTS, None))
    assert "Größe" in expected
    text = '{"q": "Größe", "n": [1, {"a": null}]}'
    sent = conversation(text, None, tool_calls=None, name=None, refusal=None)
    assert rendered(TEMPLATES[name], sent) == expected
    assert rendered(TEMPLATES[name], conversation(ARGUMENTS, None)) == expected


@pytest.mark.parametrize("name", ["qwen", "newer mistral"])
def test_content_stands_before_calls(name: str) -> None:
    expected = as_transformers(TEMPLATES[name], conversation(ARGUMENTS, "I look."))
    assert "I look." in expected
    assert rendered(TEMPLATES[name], conversation(ARGUMENTS, "I look.")) == expected


def test_a_turn_of_calls_alone_has_no_content() -> None:
    """Transformers leaves the key out, so that this template fails there."""
    text = rendered(tool_templates.DEEPSEEK, conversation('{"q":  1}', None))
    assert text == (
        '<User>Look!<call>look{"q":  1}<output>{"found": true}<Assistant>There it is.<User>Again.1'
    )


def test_no_calls_are_an_empty_list_too() -> None:
    messages = [{"role": "assistant", "content": "Yes.", "tool_calls": []}]
    assert "Yes." in ChatTemplate(tool_templates.LLAMA).render(messages)


def test_ids_are_shortened_where_a_template_requires_it() -> None:
    sent = conversation(ARGUMENTS, None)
    sent[1]["tool_calls"][0]["id"] = sent[2]["tool_call_id"] = "call_0123456789abcdef"
    short = plain(sent[2], MessageForm(short_ids=True))["tool_call_id"]
    assert len(short) == 9
    text = rendered(tool_templates.MISTRAL, sent)
    assert f'"id": "{short}"' in text
    assert f'"call_id": "{short}"' in text
    assert plain(sent[2], MessageForm())["tool_call_id"] == "call_0123456789abcdef"
    assert sent[2]["tool_call_id"] == "call_0123456789abcdef"


def two_calls() -> list[dict[str, Any]]:
    """Two calls at once, and their results in the other order."""
    calls = [
        {"id": f"id{each}", "function": {"name": "look", "arguments": f'{{"q": {each}}}'}}
        for each in (1, 2)
    ]
    return [
        {"role": "user", "content": "Look!"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "two", "tool_call_id": "id2"},
        {"role": "tool", "content": "one", "tool_call_id": "id1"},
        {"role": "tool", "content": "more", "tool_call_id": "other"},
        {"role": "user", "content": "Again."},
    ]


def test_calls_are_shown_one_by_one_where_a_template_requires_it() -> None:
    text = ChatTemplate(tool_templates.LLAMA).render(two_calls(), add_generation_prompt=False)
    shown = re.findall(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", text)
    assert shown == [
        ("system", ""),
        ("user", "Look!"),
        ("assistant", '{"name": "look", "parameters": {"q": 1}}'),
        ("ipython", '"one"'),
        ("assistant", '{"name": "look", "parameters": {"q": 2}}'),
        ("ipython", '"two"'),
        ("ipython", '"more"'),
        ("user", "Again."),
    ]


def test_only_the_first_of_several_messages_has_the_content() -> None:
    shown = plain_messages(two_calls(), MessageForm(single_calls=True))
    assert [one["content"] for one in shown] == [
        "Look!",
        "I look.",
        "one",
        "",
        "two",
        "more",
        "Again.",
    ]
    together = plain_messages(two_calls(), MessageForm())
    assert [len(one.get("tool_calls", ())) for one in together] == [0, 2, 0, 0, 0, 0]


def test_content_is_none_only_where_a_template_asks() -> None:
    call = conversation(ARGUMENTS, None)[1]
    assert plain(call, MessageForm())["content"] == ""
    assert plain(call, MessageForm(none_content=True))["content"] is None
    assert plain({"role": "assistant"}, MessageForm(none_content=True))["content"] == ""


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ a + '!' }}", '{"q":  1}!'),
        ("{{ 'x' + a + '!' }}", 'x{"q":  1}!'),
        ("{{ 'x' ~ a }}", 'x{"q":  1}'),
        ("{{ a | string }}", '{"q":  1}'),
        ("{{ a | tojson }}", '{"q": 1}'),
        ("{{ a.q }}{{ a['q'] }}{{ a is mapping }}{{ a is string }}", "11TrueFalse"),
        ("{% for key, value in a.items() %}{{ key }}={{ value }}{% endfor %}", "q=1"),
        ("{% for key, value in a | items %}{{ key }}={{ value }}{% endfor %}", "q=1"),
    ],
)
def test_arguments_are_an_object_and_a_text(source: str, shown: str) -> None:
    named = "{% set a = messages[0].tool_calls[0].function.arguments %}"
    message = conversation('{"q":  1}', None)[1]
    assert ChatTemplate(named + source).render([message]) == shown


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ({}, "tool_calls of a message must be a list"),
        (["look"], "has no function with a name"),
        ([{"id": "a"}], "has no function with a name"),
        ([{"function": {"arguments": "{}"}}], "has no function with a name"),
        ([{"function": {"name": "f", "arguments": "[1]"}}], "must be a JSON object.*'f'.*list"),
        ([{"function": {"name": "f", "arguments": 5}}], "must be a JSON object.*type int"),
        ([{"function": {"name": "f", "arguments": "{"}}], "are not JSON: .*'f'"),
    ],
)
def test_malformed_calls_are_refused(calls: object, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        plain({"role": "assistant", "tool_calls": calls}, MessageForm())


def test_reasoning_has_the_name_that_templates_know() -> None:
    said = {"role": "assistant", "content": "Yes."}
    assert plain({**said, "reasoning": "Hm."}, MessageForm())["reasoning_content"] == "Hm."
    both = {**said, "reasoning": "Hm.", "reasoning_content": "Older."}
    assert plain(both, MessageForm())["reasoning_content"] == "Older."
    assert "reasoning_content" not in plain({**said, "reasoning": None}, MessageForm())


def test_ids_of_calls_are_strings() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    for message in (
        {"role": "tool", "content": "two", "tool_call_id": []},
        {"role": "assistant", "tool_calls": [{**call, "id": {}}]},
    ):
        with pytest.raises(RequestError, match="of a tool call must be a string"):
            plain(message, MessageForm())


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}
TEXT = {"type": "text", "text": "what?"}
LOOP = (
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
)
# A template that reads parts alone, one that reads strings too, and one that reads strings alone.
PARTS = "{% for message in messages %}" + LOOP + "{% endfor %}"
BOTH = (
    "{% for message in messages %}{% if message.content is string %}string {{ message.content }}"
    "{% else %}" + LOOP + "{% endif %}{% endfor %}"
)
STRINGS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def with_images(template: str, content: Any, **options: Any) -> str:
    messages = [{"role": "user", "content": content}]
    return ChatTemplate(template).render(messages, **options)


def test_templates_show_images_where_they_stand() -> None:
    for template in (PARTS, BOTH):
        assert with_images(template, [TEXT, IMAGE, TEXT]) == "what?<image>what?"
    with pytest.raises(RequestError, match="does not show images"):
        with_images(STRINGS, [IMAGE])


def test_text_is_a_string_where_a_template_reads_strings() -> None:
    assert with_images(BOTH, [TEXT, TEXT]) == "string what?\nwhat?"
    assert with_images(PARTS, "hello") == with_images(STRINGS, "hello") == "hello"
    assert with_images(PARTS, [TEXT]) == "what?"


def test_a_message_with_an_image_is_continued() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert with_images(PARTS, [IMAGE, TEXT], **options) == "<image>what?"


def test_what_images_are_read_from() -> None:
    picture = object()
    parts: list[Any] = [
        IMAGE,
        {"type": "image_url", "image_url": "data:,y"},
        TEXT,
        {"type": "image", "image": picture},
        {"type": "image_pil", "image_pil": picture},
        {"type": "image", "url": "data:,z"},
    ]
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]
    assert images_of(messages) == ["data:,x", "data:,y", picture, picture, "data:,z"]


@pytest.mark.parametrize(
    "part", [{"type": "image_url"}, {"type": "image_url", "image_url": {"url": 3}}]
)
def test_an_image_without_content_is_refused(part: Any) -> None:
    with pytest.raises(RequestError, match="has no"):
        images_of([{"role": "user", "content": [part]}])
