"""What happened between two plans, for the runner to be told of."""

from collections import OrderedDict
from dataclasses import dataclass, field

from paceline.core.plan import Admitted, Pairs
from paceline.core.request import Sequence


@dataclass(slots=True)
class News:
    """Gathers until the next plan takes it along."""

    released: list[int] = field(default_factory=list[int])  # slots
    preempted: list[str] = field(default_factory=list[str])
    finished: OrderedDict[str, Sequence] = field(default_factory=OrderedDict[str, Sequence])
    admitted: list[Admitted] = field(default_factory=list[Admitted])
    copies: list[tuple[int, Pairs]] = field(default_factory=list[tuple[int, Pairs]])  # by slot
    swap_out: Pairs = ()
    swap_in: Pairs = ()
    chosen: dict[int, int] = field(default_factory=dict[int, int])  # token by slot

    def keep_copies(self, slots: list[int]) -> list[Pairs]:
        """What is copied for these goes to the host in the same step; the slots are given up.

        Returns the copies, whose blocks nobody else holds from now on.
        """
        kept = [pairs for slot, pairs in self.copies if slot in slots]
        self.copies = [(-1 if slot in slots else slot, pairs) for slot, pairs in self.copies]
        return kept

    def release(self, slot: int) -> None:
        """A slot was given up: what was to be told of it is void."""
        self.released.append(slot)
        if self.admitted or self.copies or self.chosen:
            self.admitted = [new for new in self.admitted if new.slot != slot]
            self.copies = [copy for copy in self.copies if copy[0] != slot]
            self.chosen.pop(slot, None)
