"""How far sequences have come in their grammars."""

from dataclasses import dataclass, field

from paceline.core.errors import RequestError
from paceline.core.plan import Plan
from paceline.structured.backend import Grammar, Matcher


@dataclass(slots=True, eq=False)
class GrammarProgress:
    """The place of one sequence in its grammar."""

    matcher: Matcher
    tokens: list[int] = field(default_factory=list[int])  # that the grammar has accepted
    error: str = ""  # why no mask could be computed, or what was not accepted

    @property
    def outputs(self) -> int:
        return len(self.tokens)

    def advance(self, tokens: list[int]) -> str:
        """Accept tokens in order, up to an end token: drafts may go on behind it. Returns what is
        wrong with the first that is not accepted."""
        for token in tokens:
            if self.error or self.matcher.terminated:
                break
            try:
                if not self.matcher.accept(token):
                    self.error = f"the constraint does not allow token {token} as output "
                    self.error += str(self.outputs)
                    break
            except RequestError as error:
                self.error = str(error)
                break
            self.tokens.append(token)
        return self.error

    def fork(self) -> "GrammarProgress":
        return GrammarProgress(self.matcher.fork(), self.tokens.copy(), self.error)


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """A beam of a request."""

    request_id: str
    grammar: Grammar
    progress: GrammarProgress


class BeamGrammars:
    """The places of beams, by slot. Plans say which beam goes on from which: one that does is
    admitted anew with all its tokens, and the latest token of each is a chosen one."""

    def __init__(self) -> None:
        self._beams: dict[int, Beam] = {}

    def at(self, slot: int, request_id: str) -> GrammarProgress | None:
        """None if the beam has left its slot since."""
        beam = self._beams.get(slot)
        return beam.progress if beam is not None and beam.request_id == request_id else None

    def follow(self, plan: Plan, grammars: dict[str, Grammar]) -> None:
        """Apply a plan. `grammars` are those of beam searches, by the id of a beam."""
        before = list(self._beams.values())
        for slot in plan.released:
            self._beams.pop(slot, None)
        for new in plan.admitted:
            if (grammar := grammars.get(new.request.id)) is not None:
                tokens: list[int] = new.tokens[len(new.request.prompt) :].tolist()
                progress = place_of(tokens, grammar, before)
                self._beams[new.slot] = Beam(new.request.id, grammar, progress)
        for slot, token in plan.chosen:
            if slot in self._beams:
                self._beams[slot].progress.advance([token])


def place_of(tokens: list[int], grammar: Grammar, beams: list[Beam]) -> GrammarProgress:
    """The place behind these tokens, which is that of a beam in most cases."""
    for one in beams:
        if one.grammar is grammar and one.progress.tokens == tokens:
            return one.progress.fork()
    progress = GrammarProgress(grammar.matcher())
    progress.advance(tokens)
    return progress
