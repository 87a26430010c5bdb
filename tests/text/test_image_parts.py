from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.text.chat_messages import images_of
from paceline.text.chat_template import ChatTemplate

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


def rendered(template: str, content: Any, **options: Any) -> str:
    messages = [{"role": "user", "content": content}]
    return ChatTemplate(template).render(messages, **options)


def test_templates_show_images_where_they_stand() -> None:
    for template in (PARTS, BOTH):
        assert rendered(template, [TEXT, IMAGE, TEXT]) == "what?<image>what?"
    with pytest.raises(RequestError, match="does not show images"):
        rendered(STRINGS, [IMAGE])


def test_text_is_a_string_where_a_template_reads_strings() -> None:
    assert rendered(BOTH, [TEXT, TEXT]) == "string what?\nwhat?"
    assert rendered(PARTS, "hello") == rendered(STRINGS, "hello") == "hello"
    assert rendered(PARTS, [TEXT]) == "what?"


def test_a_message_with_an_image_is_continued() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert rendered(PARTS, [IMAGE, TEXT], **options) == "<image>what?"


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
