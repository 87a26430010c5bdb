"""What happened between two plans that the runner must know."""

from paceline.core.plan import Admitted, Pairs
from paceline.core.request import Sequence


class Changes:
    """Collected until the next plan takes it."""

    def __init__(self) -> None:
        self.released: list[int] = []  # slots
        self.preempted: list[str] = []
        self.finished: dict[str, Sequence] = {}
        self.admitted: list[Admitted] = []
        self.copies: list[tuple[int, Pairs]] = []  # by slot
        self.swap_out: Pairs = ()
        self.swap_in: Pairs = ()
        self.chosen: dict[int, tuple[int, ...]] = {}  # tokens by slot

    def keep_copies(self, slots: list[int]) -> list[Pairs]:
        """What is copied for these goes to the host in the same step; the slots are given up.

        Returns the copies, whose blocks no other slot holds from now on.
        """
        kept = [pairs for slot, pairs in self.copies if slot in slots]
        self.copies = [(-1 if slot in slots else slot, pairs) for slot, pairs in self.copies]
        return kept

    def release(self, slot: int) -> None:
        """A slot was given up: what was collected for it is void."""
        self.released.append(slot)
        if self.admitted or self.copies or self.chosen:
            self.admitted = [new for new in self.admitted if new.slot != slot]
            self.copies = [copy for copy in self.copies if copy[0] != slot]
            self.chosen.pop(slot, None)
