"""Log-probabilities of prompts and new tokens, and images of prompts, as clients get them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, overload

from paceline.core.arrays import I32
from paceline.core.errors import RequestError
from paceline.core.multimodal import ImagePrompt
from paceline.core.pooling import PromptScores
from paceline.core.sampling import Sampling
from paceline.engine.api import Alternative, GenerationRequest, PromptLogprob, TokenLogprob
from paceline.engine.frontend.outputs import NamedLogprob
from paceline.engine.loop.messages import Delivery
from paceline.engine.loop.ports import PromptImages
from paceline.text.tokenizer import Tokenizer


def read_images(
    reader: PromptImages | None,
    generation: GenerationRequest,
    ids: Sequence[int],
    images: Sequence[Any],
) -> ImagePrompt:
    """A prompt with its images inserted. RequestError if the model reads none."""
    if reader is None:
        raise RequestError("this model reads no images; send text only")
    if generation.most_prompt_tokens is not None:
        raise RequestError(
            "a prompt with images cannot be truncated; remove truncate_prompt_tokens"
        )
    return reader.read(ids, images)


Entry = PromptLogprob | None


class PromptEntries(Sequence[Entry]):
    """One entry per token; None: not known, as for the first token.

    A prompt may have thousands of tokens with many alternatives each. So the arrays are kept as
    they arrive, and an entry is built when it is read, which may be on another thread.
    """

    def __init__(self, prompt: I32, tokenizer: Tokenizer) -> None:
        self._prompt, self._tokenizer = prompt, tokenizer
        self._found: list[tuple[PromptScores, int] | None] = [None] * len(prompt)

    def add(self, scores: PromptScores) -> None:
        """Record scores; those that are known are kept."""
        for row, position in enumerate(range(scores.first, scores.first + len(scores.rank))):
            self._found[position] = self._found[position] or (scores, row)

    def copy(self) -> "PromptEntries":
        same = PromptEntries(self._prompt, self._tokenizer)
        same._found = list(self._found)
        return same

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, index: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(len(self))))
        found = self._found[index]
        if found is None:
            return None
        scores, row = found
        pairs = zip(scores.ids[row].tolist(), scores.values[row].tolist(), strict=True)
        return PromptLogprob(
            alternative(self._tokenizer, int(self._prompt[index]), float(scores.logprob[row])),
            tuple(alternative(self._tokenizer, *pair) for pair in pairs),
            int(scores.rank[row]),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[Any]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[type, tuple[tuple[Entry, ...]]]:
        """Pickle a tuple: the tokenizer stays here."""
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


def alternative(tokenizer: Tokenizer, id: int, logprob: float) -> Alternative:
    spelled = tokenizer.token_bytes(id)
    return Alternative(id, logprob, spelled.decode(errors="replace"), spelled)


def token_entries(
    delivery: Delivery, row: int, sampling: Sampling, tokenizer: Tokenizer
) -> list[TokenLogprob]:
    """One entry for each new token of a row; alternatives are known for the first of them."""
    wanted = sampling.logprobs
    if wanted is None or delivery.logprob is None:
        return []
    count = int(delivery.count[row])
    ids, values = delivery.ids[row, :count].tolist(), delivery.logprob[row].tolist()
    chosen = zip(ids, values[:count], strict=True)
    kind = NamedLogprob if sampling.logprob_token_ids else TokenLogprob
    entries: list[TokenLogprob] = [kind(alternative(tokenizer, *pair), ()) for pair in chosen]
    found = delivery.candidates
    if wanted and found is not None:
        pairs = list(zip(found.ids[row].tolist(), found.logprob[row].tolist(), strict=True))
        pairs = reported(pairs, entries[0].chosen, sampling)
        top = tuple(alternative(tokenizer, *pair) for pair in pairs)
        entries[0] = replace(entries[0], top=top)
    return entries


def reported(
    pairs: list[tuple[int, float]], chosen: Alternative, sampling: Sampling
) -> list[tuple[int, float]]:
    """The likeliest tokens, or the token itself and those that the request names."""
    if not sampling.logprob_token_ids:
        return [pair for pair in pairs[: sampling.logprobs] if pair[0] >= 0]
    others = {*sampling.logprob_token_ids} - {chosen.token_id}
    return [(chosen.token_id, chosen.logprob), *(pair for pair in pairs if pair[0] in others)]
