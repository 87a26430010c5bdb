"""The writers without ready bytes: each event is a struct or a dict that is encoded as a whole."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any
from unittest.mock import patch

from msgspec import UNSET

from paceline.engine.api import TextDelta
from paceline.server.replies.response_writer import ResponseWriter
from paceline.server.routes.chat import ChatWriter
from paceline.server.routes.completions import CompletionWriter
from paceline.server.routes.messages import MessageWriter
from paceline.server.routes.responses import ResponsesWriter
from paceline.server.schemas.chat_messages import Delta
from paceline.server.schemas.completions import ChatChunkChoice, chat_logprobs
from paceline.server.schemas.envelope import Envelope
from paceline.server.schemas.messages import message_event
from paceline.server.schemas.responses import response_event


class ReferenceChat(ChatWriter):
    """Each delta becomes a `ChatChunk`."""

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        shown = delta.text or delta.finish_reason or delta.logprobs
        if not (shown or (self._with_ids and delta.token_ids)):
            return b""
        return self._envelope.chat_event(
            ChatChunkChoice(
                delta.index,
                Delta(content=delta.text or None),
                chat_logprobs(delta.logprobs, self._envelope.as_ids),
                delta.finish_reason,
                delta.stop_reason if delta.finish_reason else UNSET,
                delta.token_ids if self._with_ids else UNSET,
            ),
        )


class ReferenceCompletion(CompletionWriter):
    """Each delta becomes a `Completion`."""

    def delta(self, part: int, delta: TextDelta) -> bytes:
        self._envelope.count(delta)
        shown = delta.text or delta.finish_reason or delta.logprobs
        if not (shown or (self._with_ids and delta.token_ids)):
            return b""
        return self._envelope.text_event(self._choice(part, delta))


class ReferenceMessage(MessageWriter):
    """Each text becomes a dict."""

    def delta(self, part: int, delta: TextDelta) -> bytes:
        if not delta.text:
            return b""
        text = {"type": "text_delta", "text": delta.text}
        return message_event("content_block_delta", index=0, delta=text)


class ReferenceResponses(ResponsesWriter):
    """Each text becomes a dict with a number."""

    def delta(self, part: int, delta: TextDelta) -> bytes:
        number = self._items.number
        if not super().delta(part, delta):
            return b""
        found = chat_logprobs(delta.logprobs)
        return response_event(
            "response.output_text.delta",
            number,
            item_id=f"msg-{self._begun.id}",
            output_index=0,
            content_index=0,
            delta=delta.text,
            logprobs=[] if found is None else found.content,
        )


REFERENCES = {
    "chat.ChatWriter": ReferenceChat,
    "completions.CompletionWriter": ReferenceCompletion,
    "messages.MessageWriter": ReferenceMessage,
    "responses.ResponsesWriter": ReferenceResponses,
}


@contextmanager
def references() -> Generator[list[ResponseWriter]]:
    """Beside each writer that a route makes, its reference is made and added to the list."""
    made: list[ResponseWriter] = []

    def both(own: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any) -> Any:
            apart = [copy(one) if isinstance(one, Envelope) else one for one in given]
            made.append(reference(*apart))
            return own(*given)

        return make

    owns = ChatWriter, CompletionWriter, MessageWriter, ResponsesWriter
    with ExitStack() as patches:
        for own, (name, reference) in zip(owns, REFERENCES.items(), strict=True):
            where = f"paceline.server.routes.{name}"
            patches.enter_context(patch(where, both(own, reference)))
        yield made
