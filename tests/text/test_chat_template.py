import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from paceline.core.errors import ConfigError, RequestError
from paceline.text.chat_template import CHATML, ChatTemplate, read_template, say_once
from paceline.text.described_tools import QUESTION
from paceline.text.tokenizer import Tokenizer
from paceline.text.vocabulary import Vocabulary
from paceline.tools.formats.hermes import HermesParser
from tests.text.support import byte_level

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is 1 < 2 & 3 > 2? Größe…"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Sure?"},
]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks <up> “it”", "parameters": {"a": [1, None]}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"q": "é"}}}

# What templates in the wild make use of: loop controls, macros, namespaces, filters, trimming.
TEMPLATES = {
    "instruction": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}"
        "{% elif message.role == 'assistant' %}{{ message.content + eos_token }}{% endif %}"
        "{% endfor %}"
    ),
    "tools": """
        {%- macro line(tool) %}{{ tool | tojson }}{{ '\\n' }}{% endmacro %}
        {%- set state = namespace(seen=0) %}
        {%- if tools is not none %}
        {%- for tool in tools %}{{ line(tool) }}{{ tool | tojson(indent=2) }}{% endfor %}
        {%- endif %}
        {%- for message in messages %}
            {%- if message.role == 'system' %}{% continue %}{% endif %}
            {%- set state.seen = state.seen + 1 %}
            {%- if state.seen > 3 %}{% break %}{% endif %}
    {{ state.seen }}:{{ message.role | upper }}:{{ message['content'] }}
            {%- for call in message.tool_calls or [] %}
                {{- call.function.name }}({{ call.function.arguments | tojson }})
            {%- endfor %}
        {% endfor %}
        {%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
    """,
    "generation": (
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}|"
        "{% endfor %}"
    ),
}


def theirs(template: str) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    return made


@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name: str, tools: Any, prompts: bool) -> None:
    template = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    calls = [{"role": "assistant", "content": "", "tool_calls": [CALL]}] if name == "tools" else []
    tools = tools if calls else None  # transformers drops them without a word
    chat = [*CHAT, *calls]
    expected = theirs(TEMPLATES[name]).apply_chat_template(
        chat, tools=tools, add_generation_prompt=prompts, tokenize=False
    )
    assert template.render(chat, tools=tools, add_generation_prompt=prompts) == expected


def test_an_effort_has_no_effect_where_the_template_does_not_use_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    effort = {"reasoning_effort": "low"}
    shown = ChatTemplate("{{ reasoning_effort }}").render(CHAT, variables=effort)
    assert shown == "low"
    either = {"enable_thinking": True, **effort}
    assert ChatTemplate("{{ enable_thinking }}").render(CHAT, variables=either) == "True"
    say_once.cache_clear()
    plain = ChatTemplate(CHATML).render(CHAT)
    for _ in range(2):
        assert ChatTemplate(CHATML).render(CHAT, variables=effort) == plain
    (said,) = caplog.messages
    assert "does not use reasoning_effort: it has no effect" in said


def test_tools_that_the_template_does_not_show_are_described(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say_once.cache_clear()
    template = ChatTemplate(CHATML)
    prompt = template.render(CHAT, tools=[TOOL])
    assert template.render(CHAT, tools=[TOOL]) == prompt
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert '{"name": "look", "description": "Looks <up> “it”", "parameters": ' in prompt
    assert prompt.count("<|im_start|>system") == 1
    (said,) = caplog.messages
    assert "described in a system message" in said
    alone = template.render(CHAT[1:], tools=[TOOL])
    assert alone.startswith("<|im_start|>system\nYou can call functions.")
    assert template.render(CHAT, tools=[]) == template.render(CHAT)


NO_SYSTEM = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<' + message.role + '>' + message.content }}
{%- endfor %}"""
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}"


@pytest.mark.parametrize("source", [NO_SYSTEM, WITHOUT_SYSTEM])
def test_the_user_describes_tools_where_no_system_message_is_shown(source: str) -> None:
    prompt = ChatTemplate(source).render([CHAT[1]], tools=[TOOL])
    assert prompt.removeprefix("<user>").startswith("You can call functions.")
    assert CHAT[1]["content"] in prompt


TOLD = [
    CHAT[1],
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "first"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "second"}]},
]


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_calls_and_results_are_text_where_the_template_has_no_place(tools: Any) -> None:
    template = ChatTemplate(NO_SYSTEM)
    prompt = template.render(TOLD, tools=tools)
    call = '<tool_call>\n{"name": "look", "arguments": {"q": "é"}}\n</tool_call>'
    returned = "The function look returned:\n"
    results = f"<user>{returned}first\n\n{returned}second\n"
    assert prompt.endswith(f"<assistant>{call}\n{call}{results}{QUESTION}")
    more = template.render([*TOLD, {"role": "user", "content": "And?"}], tools=tools)
    assert more.endswith(f"{results}\nAnd?")
    further = [*TOLD, {"role": "assistant", "content": "Yes."}, CHAT[3]]
    assert template.render(further).endswith(f"{results}{QUESTION}<assistant>Yes.<user>Sure?")


def test_a_call_is_written_as_the_parser_reads_it() -> None:
    reply = HermesParser().whole(
        ChatTemplate(NO_SYSTEM).render(TOLD[:2]).rpartition("<assistant>")[2]
    )
    assert reply.content is None
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [
        ("look", {"q": "é"})
    ] * 2


def test_parts_stay_parts_where_tools_are_described() -> None:
    source = (
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endfor %}"
    )
    prompt = ChatTemplate(source).render(TOLD, tools=[TOOL])
    assert prompt.startswith("You can call functions.")
    assert "The function look returned:|\n|second|" in prompt


def test_chatml_is_built_in() -> None:
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    chat = [CHAT[0], CHAT[3]]
    assert ChatTemplate(CHATML).render(chat, add_generation_prompt=False) == rendered
    assert ChatTemplate(read_template("chatml")).render(chat).startswith(rendered)


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_a_template_refuses_conversations(source: str | None) -> None:
    with pytest.raises(RequestError, match=r"no chat template: set chat_template .*file"):
        ChatTemplate(source).render(CHAT)


def test_a_template_is_given_as_a_file_or_as_its_text(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].content }}é")
    assert read_template(str(file)) == "{{ messages[0].content }}é"
    assert read_template("{% if x %}y{% endif %}") == "{% if x %}y{% endif %}"
    for wrong, problem in ((tmp_path / "no.jinja", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigError, match=f"{wrong.name}.*cannot be read: .*{problem}"):
            read_template(str(wrong))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot be read: .*utf-8"):
        read_template(str(file))


def test_another_template_has_the_same_tokens() -> None:
    template = ChatTemplate(None, bos_token="<s>").replaced("{{ bos_token }}!")
    assert template.render(CHAT) == "<s>!"
    with pytest.raises(RequestError, match="the chat template has an error in line 1"):
        template.replaced("{% if %}")


def test_a_template_comes_with_its_tokenizer() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    tokenizer = Tokenizer(Vocabulary(byte_level(), 0, (1, 2), source))
    text = ChatTemplate.of(tokenizer).render([CHAT[3]])
    assert text == "<s>Sure?</s>"
    assert tokenizer.encode(text, special=False)[:: len(tokenizer.encode(text)) - 1] == [0, 1]


def test_a_model_may_have_another_template_for_tools() -> None:
    vocabulary = Vocabulary(byte_level(), 0, (1, 2), "plain", tool_template="{{ tools[0].type }}")
    template = ChatTemplate.of(Tokenizer(vocabulary))
    assert template.render(CHAT, tools=[TOOL]) == "function"
    assert template.render(CHAT, tools=[]) == "plain"
    assert template.replaced("{{ tools | length }}").render(CHAT, tools=[TOOL]) == "1"
    with pytest.raises(ConfigError, match="the chat template has an error in line 1"):
        ChatTemplate("plain", tool_source="{% if %}")


def test_no_tools_are_none() -> None:
    assert ChatTemplate("{{ tools is none }}").render(CHAT, tools=[]) == "True"


def test_a_developer_is_the_system() -> None:
    told = ChatTemplate(CHATML).render([{"role": "developer", "content": "Be brief."}])
    assert told.startswith("<|im_start|>system\nBe brief.")


def test_parts_become_one_text() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "content": parts}]) == "one\ntwo"
    assert template.render([{"role": "user", "content": []}]) == ""
    assert template.render([{"role": "assistant", "content": None}]) == ""
    assert template.render([{"role": "assistant"}]) == ""


def test_arguments_of_calls_are_parsed() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.q }}")
    call = {"id": "c", "function": {"name": "look", "arguments": '{"q": "é"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert template.render([message]) == "é"
    assert call["function"] == {"name": "look", "arguments": '{"q": "é"}'}
    for wrong in ("{q", "[" * 100_000):
        call["function"] = {"name": "look", "arguments": wrong}
        with pytest.raises(RequestError, match="arguments of a tool call are not JSON"):
            template.render([message])


@pytest.mark.parametrize("nothing", ["", " ", None])
def test_a_call_without_arguments_has_none(nothing: str | None) -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    call = {"id": "c", "function": {"name": "now", "arguments": nothing}}
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == "{}"


def test_a_call_is_shown_in_the_order_it_was_written() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls | tojson }}")
    call = {"function": {"arguments": '{"b": 1, "a": 2}', "name": "f"}, "id": "c"}
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == (
        '[{"function": {"arguments": {"b": 1, "a": 2}, "name": "f"}, "id": "c"}]'
    )


@pytest.mark.parametrize("content", ["Once upon a", "Once  ", "e", "", " <|im_end|> "])
def test_the_last_message_can_be_continued(content: str) -> None:
    chat = [CHAT[3], {"role": "assistant", "content": content}]
    prompt = ChatTemplate(CHATML).render(
        chat, add_generation_prompt=False, continue_final_message=True
    )
    user = "<|im_start|>user\nSure?<|im_end|>\n"
    assert prompt == f"{user}<|im_start|>assistant\n{content}"


def test_a_message_that_is_not_shown_cannot_be_continued() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(RequestError, match="continue_final_message has no effect"):
        template.render(CHAT, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(RequestError, match="but add_generation_prompt begins a new one"):
        template.render(CHAT, continue_final_message=True)


def test_any_role_reaches_the_template() -> None:
    chat = [{"role": "my-role", "content": [{"type": "text", "text": "Hm."}]}]
    assert ChatTemplate(CHATML).render(chat).startswith("<|im_start|>my-role\nHm.<|im_end|>")


def test_a_template_may_ask_for_the_date() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26, 12, 0)
    )
    assert template.render(CHAT) == "26 Jul 2024"


def test_variables_of_a_template_are_passed_but_never_shadow_the_conversation() -> None:
    template = ChatTemplate("{{ messages | length }}{{ thinking }}{{ bos_token }}", bos_token="<s>")
    variables = {"thinking": "!", "messages": [], "bos_token": "x"}
    assert template.render(CHAT, variables=variables) == "4!<s>"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.strip() }}", "no element 7|undefined"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].update({}) }}", "update"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ range(10**9) | list }}", "[Rr]ange"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ messages[0].content * 10**17 }}", ""),
        ("{{ nowhere.at.all }}", "nowhere"),
        ("{{ nothing | tojson }}", "serializable"),
    ],
)
def test_an_error_in_a_template_is_told_with_its_text(source: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=f"the chat template rejects.*({complaint})"):
        ChatTemplate(source).render(CHAT)


def test_a_template_that_is_none_is_refused_when_loaded() -> None:
    with pytest.raises(ConfigError, match=r"the chat template has an error in line 2: .*endfor"):
        ChatTemplate("a\n{% for message in messages %}")
    with pytest.raises(ConfigError, match="the chat template cannot be parsed"):
        ChatTemplate("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}")


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ([{"content": "x"}], "no role"),
        ([{"role": 3, "content": "x"}], "no role"),
        ([{"role": "user", "content": 3}], "has type int"),
        ([{"role": "user"}], "'user' has no content"),
        ([{"role": "tool", "content": None}], "'tool' has no content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "does not show images",
        ),
        ([{"role": "user", "content": [{"text": "x"}]}], "no type"),
        ([{"role": "user", "content": ["x"]}], "no type"),
    ],
)
def test_messages_that_cannot_be_read_are_refused(messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        ChatTemplate(CHATML).render(messages)


def test_a_template_from_a_folder_is_used(tmp_path: Path) -> None:
    made = theirs(TEMPLATES["instruction"])
    made.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").is_file()
    text = ChatTemplate.of(Tokenizer.load(tmp_path)).render(CHAT)
    assert text == made.apply_chat_template(CHAT, tokenize=False)
