"""Text to tokens and back over HTTP."""

import pytest

from paceline.text.chat_template import CHATML, ChatTemplate
from tests.engine.support import MAX_MODEL_LEN, framing_texts, tokenizer
from tests.server.conftest import Play
from tests.server.support import Site, on_its_own_server

SAID = [{"role": "user", "content": "a"}]
TEXT = "The quick naïve 😀 fox"


def test_there_and_back(on: Play) -> None:
    async def scenario(site: Site) -> None:
        got = (await site.post("/tokenize", prompt=TEXT, return_token_strs=True)).json()
        assert got["tokens"] == tokenizer().encode(TEXT)
        assert got["count"] == len(got["tokens"])
        assert got["max_model_len"] == MAX_MODEL_LEN
        raw = [tokenizer()._backend.id_to_token(id) for id in got["tokens"]]
        assert got["token_strs"] == raw
        assert "Ġfox" in raw
        back = await site.post("/detokenize", tokens=got["tokens"])
        assert back.json() == {"prompt": TEXT}
        (model,) = (await site.http.get("/v1/models")).json()["data"]
        assert model["max_model_len"] == MAX_MODEL_LEN

    on(scenario)


def test_special_tokens_are_shown(on: Play) -> None:
    async def scenario(site: Site) -> None:
        back = await site.post("/detokenize", tokens=[0, *tokenizer().encode("fox"), 1])
        assert back.json() == {"prompt": "<s>fox</s>"}

    on(scenario)


def test_a_text_is_framed_unless_it_is_asked_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    framed: list[bool] = []

    def noted(_text: str, special: bool = True) -> list[int]:
        framed.append(special)
        return [5]

    async def scenario(site: Site) -> None:
        monkeypatch.setattr(site.context.tokenizer, "encode", noted)
        for extra in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            await site.post("/tokenize", prompt="the", **extra)
        await site.post("/tokenize", messages=[{"role": "user", "content": "the"}])
        monkeypatch.undo()

    on_its_own_server(scenario)
    assert framed == [True, True, False, False]


def test_a_conversation_as_the_model_reads_it(on: Play) -> None:
    async def scenario(site: Site) -> None:
        messages = [{"role": "user", "content": TEXT}]
        for prompted in (True, False):
            got = await site.post("/tokenize", messages=messages, add_generation_prompt=prompted)
            text = ChatTemplate.of(tokenizer()).render(messages, add_generation_prompt=prompted)
            assert got.json()["tokens"] == tokenizer().encode(text, special=False)
        mode = {"add_generation_prompt": False, "continue_final_message": True}
        continued = (await site.post("/tokenize", messages=messages, **mode)).json()["tokens"]
        text = f"<|im_start|>user\n{TEXT}"
        assert continued == tokenizer().encode(text, special=False)

    on(scenario)


def test_what_a_client_needs_to_count_tokens_itself(on: Play) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.get("/tokenizer_info")).json() == {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_size": tokenizer().vocab_size,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "eos_token_ids": [1],
            "special_token_ids": [0, 1, 2, 3],
            "chat_template": CHATML,
            "max_model_len": site.engine.max_model_len,
        }

    on(scenario)


def test_a_conversation_is_as_long_as_in_a_chat_and_has_tools_that_the_template_shows() -> None:
    async def scenario(site: Site) -> None:
        template = ChatTemplate(
            "{{ tools | tojson }}{{ reasoning_effort }}{{ messages[0].content }}"
        )
        site.context.template = site.engine._frontend.template = template
        body = {"messages": [{"role": "user", "content": TEXT}]}
        effort = {"chat_template_kwargs": {"reasoning_effort": "low"}}
        counted = (await site.post("/tokenize", **body, **effort)).json()["count"]
        chat = {**body, "max_tokens": 1, "reasoning_effort": "low"}
        answer = (await site.post("/v1/chat/completions", **chat)).json()
        assert counted == answer["usage"]["prompt_tokens"]
        tools = {"tools": [{"name": "weather"}]}
        assert (await site.post("/tokenize", **body, **tools)).json()["count"] > counted

    on_its_own_server(scenario)


def test_special_tokens_may_be_added_to_a_conversation() -> None:
    async def scenario(site: Site) -> None:
        plain = (await site.post("/tokenize", messages=SAID)).json()["tokens"]
        added = await site.post("/tokenize", messages=SAID, add_special_tokens=True)
        assert added.json()["tokens"] == [0, *plain]

    with framing_texts():
        on_its_own_server(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": []}, 400),
        ("/tokenize", {"messages": []}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {"messages": SAID, "chat_template": "{{ messages }}"}, 400),
        ("/tokenize", {"messages": SAID, "continue_final_message": True}, 400),
        ("/tokenize", {"messages": SAID, "documents": [{"text": "a"}]}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [5, 10**6]}, 400),
        ("/detokenize", {"tokens": [tokenizer().vocab_size]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [2**31]}, 400),
    ],
)
def test_what_is_refused(on: Play, path: str, body: dict[str, object], status: int) -> None:
    async def scenario(site: Site) -> None:
        response = await site.post(path, **body)
        assert response.status_code == status
        assert response.json()["error"]["message"]

    on(scenario)
