"""How the text of a request is split into content, reasoning and tool calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.engine.api import RequestOutput, SamplingParams, TextDelta
from paceline.server.errors import BAD_REQUEST, ApiError
from paceline.server.settings import ServerSettings
from paceline.structured.request_fields import from_response_format
from paceline.text.chat_template import shows_tools
from paceline.text.tokenizer import Tokenizer
from paceline.tools.calls import CallDelta, ContentDelta, ReasoningDelta, ReplyDelta, merged
from paceline.tools.parser import OutputParser, ToolParser
from paceline.tools.reasoning_parser import ReasoningParser, ReasoningThenCalls
from paceline.tools.registry import reasoning_parser, tool_parser
from paceline.tools.tool_use import ToolUse

PROMPT_END = 16  # tokens of a prompt that are read for a marker of reasoning


@dataclass(frozen=True, slots=True)
class ReplyParsing:
    """The tools of one request, and the parsers of its text; None: there is nothing to parse."""

    use: ToolUse | None = None
    reasoning: type[ReasoningParser] | None = None
    decode: Callable[[Sequence[int]], str] = str  # the text of tokens, special ones included
    with_reasoning: bool = True  # whether reasoning is returned
    spell: Callable[[int], bytes] = bytes  # the bytes of a token, special ones included
    budget: int | None = None  # most tokens of reasoning

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.reasoning is None and not self.has_tools

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools."""
        return self.use is not None and self.use.choice != "none"

    def shown(self) -> list[dict[str, Any]] | None:
        """The tools for the chat template."""
        return self.use and self.use.shown()

    def decoded(self, params: SamplingParams) -> SamplingParams:
        """Special tokens are kept in the text if they are the markers of a format."""
        parsers = (self.use, self.reasoning)
        if any(one is not None and one.needs_special_tokens for one in parsers):
            return replace(params, skip_special_tokens=False)
        return params

    def limited(self, budget: int | None) -> "ReplyParsing":
        """The same for a model that reasons in so many tokens at most. 400 if it does not reason
        in blocks."""
        if budget is None:
            return self
        if self.reasoning is None:
            problem = "this model does not reason in blocks (--reasoning-parser)"
            param = "thinking_token_budget"
            raise ApiError(BAD_REQUEST, f"{param}: {problem}; remove {param}", param=param)
        return replace(self, budget=budget)

    def may_hold(self, params: SamplingParams) -> bool:
        """Whether `held` may change the parameters."""
        reasons = self.reasoning is not None and params.constraint is not None
        return self.has_tools or reasons or self.budget is not None

    def held(self, params: SamplingParams, prompt: Sequence[int]) -> SamplingParams:
        """The parameters with the grammar that holds the model to calls of its tools. It holds
        the answer alone, if the model may reason first."""
        found = self._constraint(params)
        if found is None and self.budget is None:
            return params
        reasoning = self._reasoning(prompt)
        if reasoning is not None and (markers := reasoning.markers) is not None:
            found = (found or Constraint.any_text()).after_reasoning(*markers)
            found = found if self.budget is None else found.within(self.budget)
        return replace(params, structured_outputs=found)

    def _constraint(self, params: SamplingParams) -> Constraint | None:
        """Of the tools, of the request, or of both where the model may call or answer."""
        own = params.constraint
        if self.use is None or self.use.choice == "none":
            return own
        if own is not None and self.use.choice != "auto":
            raise RequestError(
                "a call that is required cannot be combined with another constraint on the text; "
                "remove one of them, or set tool_choice to auto"
            )
        if own is not None and own.kind != "json":
            return own
        form = self.use.constraint() if own is None else self.use.calls_or(own.value)
        if not form:
            return own
        found = from_response_format(form)
        assert found is not None, "a choice that holds the model has a constraint"
        # A model that is held to JSON may write whitespace without an end.
        return replace(found, any_whitespace=False)

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        """A parser for one choice."""
        calls = self.use and self.use.parser()
        reasoning = self._reasoning(prompt)
        if calls is None or reasoning is None:
            found = calls or reasoning
            assert found is not None, "plain text is not parsed"
            return found
        return ReasoningThenCalls(reasoning, calls)

    def reasoning_tokens(self, outputs: Sequence[RequestOutput]) -> int:
        """How many tokens of all choices are reasoning, with its markers."""
        return sum(
            self._block(output.prompt_token_ids, answer.token_ids)
            for output in outputs
            for answer in output.outputs
        )

    def _block(self, prompt: Sequence[int], tokens: Sequence[int]) -> int:
        """The number of tokens up to the end of the block of reasoning."""
        reasoning = self._reasoning(prompt)
        if reasoning is None or reasoning.markers is None:
            return 0
        start, end = (marker.encode() for marker in reasoning.markers)
        spelled = [self.spell(token) for token in tokens]
        text = b"".join(spelled)
        if not text.lstrip().startswith(start):
            return 0
        close = text.find(end)
        if close < 0:
            return len(tokens)
        before = accumulate(map(len, spelled))
        return next(n for n, bytes in enumerate(before, 1) if bytes >= close + len(end))

    def _reasoning(self, prompt: Sequence[int]) -> ReasoningParser | None:
        return self.reasoning and self.reasoning(self.decode(prompt[-PROMPT_END:]))


PLAIN_REPLY = ReplyParsing()


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """How the model of a server writes calls and reasoning; None: it is not parsed."""

    calls: type[ToolParser] | None
    reasoning: type[ReasoningParser] | None
    template: str  # the source of the chat template
    decode: Callable[[Sequence[int]], str]
    spell: Callable[[int], bytes]
    auto_choice: bool = True
    shows_tools: bool = True  # whether the template does; otherwise they are described

    @classmethod
    def of(cls, settings: ServerSettings, tokenizer: Tokenizer) -> "ReplyFormats":
        plain = tokenizer.chat_template or ""
        template = tokenizer.tool_template or plain
        calls, reasoning = settings.tool_call_parser, settings.reasoning_parser
        shown = shows_tools(template)
        if calls == "auto" and not shown:
            calls = "hermes"  # as the tools are described
        return cls(
            None if calls == "none" else tool_parser(calls, template),
            None if reasoning == "none" else reasoning_parser(reasoning, plain),
            template,
            lambda ids: tokenizer.decode(ids, skip_special=False),
            tokenizer.token_bytes,
            settings.enable_auto_tool_choice,
            shown,
        )

    def asked(
        self,
        tools: Sequence[object] | None,
        choice: object,
        parallel: bool | None,
        with_reasoning: bool = True,
    ) -> ReplyParsing:
        """What the fields of a request ask for. An error if one is malformed, or not supported."""
        use = None
        if tools or choice not in (None, "none", "auto"):
            use = self._use(tools, choice, parallel)
        if use is None and self.reasoning is None:
            return PLAIN_REPLY
        return ReplyParsing(use, self.reasoning, self.decode, with_reasoning, self.spell)

    def _use(
        self, tools: Sequence[object] | None, choice: object, parallel: bool | None
    ) -> ToolUse | None:
        format = self.calls or ToolParser
        use = ToolUse.read(tools, choice, parallel, format, self.template)
        use = use if self.shows_tools else use.held(parallel)
        if use.choice == "none":
            return None
        if self.calls is None:
            raise refused("tools", "this server has no parser of tool calls (--tool-call-parser)")
        if use.choice == "auto" and not self.auto_choice:
            raise refused("tool_choice", "auto is switched off (--enable-auto-tool-choice)")
        return use


def refused(param: str, problem: str) -> ApiError:
    return ApiError(
        BAD_REQUEST, f"{param}: {problem}; remove tools, or set tool_choice to none", param=param
    )


class ReplyReader:
    """Reads the choices of a request as they arrive, each with a parser of its own.

    `calling` has the choices with a call so far.
    """

    def __init__(self, reply: ReplyParsing, prompt: Sequence[int]) -> None:
        self.calling: set[int] = set()
        self._reply, self._prompt = reply, prompt
        self._parsers: dict[int, OutputParser] = {}

    def read(self, delta: TextDelta) -> Sequence[ReplyDelta]:
        """What a delta adds; its last delta, or a whole choice, adds what was withheld."""
        if self._reply.is_plain:
            return [ContentDelta(delta.text)] if delta.text else []
        parser = self._parsers.get(delta.index)
        if parser is None:
            parser = self._parsers[delta.index] = self._reply.parser(self._prompt)
        found = parser.push(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            found = merged([*found, *parser.finish()])
        if not self._reply.with_reasoning:
            found = [one for one in found if not isinstance(one, ReasoningDelta)]
        if any(isinstance(one, CallDelta) for one in found):
            self.calling.add(delta.index)
        return found
