"""The state of a scheduler: its sequences, queues and caches."""

import numpy as np

from paceline.core.capabilities import StepCost
from paceline.core.plan import Admitted, Pairs
from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.kv.cache import KVCache
from paceline.sched import policy, speculation
from paceline.sched.admission.bodies import Bodies
from paceline.sched.admission.images_ahead import ImagesAhead
from paceline.sched.admission.prefixes import Prefixes
from paceline.sched.explain.journal import Journal
from paceline.sched.groups.group import SequenceGroup, SequenceGroups
from paceline.sched.queue import WaitingQueue
from paceline.sched.service.promises import Promises
from paceline.sched.service.step_model import StepModel
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats
from paceline.sched.transfers.connector_link import ConnectorLink
from paceline.sched.transfers.states import States
from paceline.sched.transfers.stores import Stores
from paceline.sched.transfers.swapping import Swapping


class Changes:
    """Changes since the latest plan, for the next one."""

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
        """Keep the block copies of slots that are swapped out in the same step.

        Returns the copies, whose blocks no slot holds any more.
        """
        kept = [pairs for slot, pairs in self.copies if slot in slots]
        self.copies = [(-1 if slot in slots else slot, pairs) for slot, pairs in self.copies]
        return kept

    def release(self, slot: int) -> None:
        """Record a released slot, and drop what was collected for it."""
        self.released.append(slot)
        if self.admitted or self.copies or self.chosen:
            self.admitted = [new for new in self.admitted if new.slot != slot]
            self.copies = [copy for copy in self.copies if copy[0] != slot]
            self.chosen.pop(slot, None)


class SchedulerState:
    """The state of a scheduler. Every live request is resident, waiting, swapped, or parked.

    `Arrivals` and `Departures` move sequences between these states; `ChildAborts` ends children
    before the rest of their group. `changes` collects what the next plan tells the runner.

    step, now         the latest step / seconds
    table, cache      residents in columns / their blocks
    prefixes          prefix lookups
    states            states of residents, and which of them are kept
    link, stores      the connector, if there is one / blocks stored with it
    swapping          preemption to the host
    images            images that residents have not computed yet
    cuts_prompts      may a step compute a part of a prompt?
    times, promises   learned step times / which requests meet their targets
    policy            order of admission and preemption
    speculation       number of drafts
    queue, swapped    waiting sequences / swapped ones
    bodies            requests of a body that are parked for other requests
    live              open requests by id
    sequence_groups   open requests with several sequences
    journal, stats    explanations / counters
    """

    def __init__(self, config: Config) -> None:
        slots, length = config.step.max_num_seqs, config.step.max_model_len
        self.step = 0
        self.now = 0.0
        self.table = SlotTable(slots, length)
        row = config.step.longest_row + config.speculation.lookahead_slots
        host = config.preemption.swap_space
        self.cache = KVCache(config.cache, slots, length, host, row, clock=self)
        self.prefixes = Prefixes(self)
        self.states = States(config.cache, self.table, self.cache, self.prefixes)
        self.link = ConnectorLink(self.cache)
        self.stores = Stores(self.link, self.table, self.cache, self.states)
        self.swapping = Swapping(config.preemption, self.table, self.cache, self.states)
        self.cuts_prompts = config.step.enable_chunked_prefill
        self.times = StepModel(config.step.max_step_s)
        self.promises = Promises(config.service, self.table)
        self.policy = policy.load(config.policy, self)
        self.times.learns |= self.policy.learns
        self.speculation = speculation.load(config.speculation)
        self.queue = WaitingQueue(self.policy)
        self.swapped = WaitingQueue(self.policy)
        self.journal = Journal(config.journal)
        self.stats = Stats()
        self.live: dict[str, Sequence] = {}  # by request id; of groups: the leader
        self.sequence_groups = SequenceGroups()
        self.bodies = Bodies(config.step.slots_for_others, self)
        self.images = ImagesAhead(config, self.table, self.stats)
        self.changes = Changes()

    @property
    def cost(self) -> StepCost | None:
        """What a position costs, as it was measured and learned since; None: not measured."""
        return self.times.position

    # -- where sequences are ------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that could be admitted if there were room."""
        return len(self.queue) + len(self.swapped)

    def head(self, now: float) -> Sequence | None:
        """The sequence to admit next: swapped ones first, then waiting ones."""
        return self.swapped.head(now) or self.queue.head(now)

    def queue_of(self, sequence: Sequence) -> WaitingQueue:
        """The queue of a sequence."""
        return self.swapped if sequence.swapped else self.queue

    def sequence_group(self, sequence: Sequence) -> SequenceGroup | None:
        return self.sequence_groups[sequence.id] if sequence.child >= 0 else None

    def group(self, sequence: Sequence) -> list[Sequence]:
        """The sequences of the same request."""
        sequence_group = self.sequence_group(sequence)
        return [sequence] if sequence_group is None else list(sequence_group.members)

    def in_flight(self) -> list[int]:
        """Resident slots with unconfirmed positions or copies, oldest first."""
        order, table, arriving = self.table.order, self.table, self.cache.fences.arriving
        busy = table.planned[order] > table.computed[order]
        if arriving:
            busy |= np.isin(table.serial[order], list(arriving))
        slots: list[int] = order[busy].tolist()
        return slots

    @property
    def coming_blocks(self) -> int:
        """Blocks that the steps in flight will free, and residents that are about to be swapped."""
        cache, order = self.cache, self.table.order
        passed = cache.tables.coming(order, self.table.planned[order])
        return cache.fences.coming + passed + self.swapping.coming

    def use_weights(self, fingerprint: str) -> None:
        """Name KV by weights with this fingerprint. Nothing is cached or resident."""
        self.cache.index.keys.renew(fingerprint)
        self.images.cache.clear()
        for leader in self.live.values():
            for sequence in self.group(leader):
                sequence.keys = []

    # -- what policies see --------------------------------------------------

    def uncached(self, sequence: Sequence) -> int:
        """Tokens that a waiting sequence would have to compute."""
        return len(sequence.tokens) - self.prefixes.lookup(sequence).tokens

    def loss(self, slot: int) -> int:
        """Tokens that a resident would have to compute again after preemption."""
        kept = self.cache.tables.shared(slot) * self.cache.block_size
        return max(int(self.table.computed[slot]) - kept, 0)

    def check(self) -> None:
        """Assert every invariant; valid between any two calls."""
        self.table.check()
        self.cache.check()
        self.swapping.tier.check()
        self.images.check()
        self.bodies.check()
        places = [
            {self.table.sequence(slot).id for slot in self.table.order.tolist()},
            {sequence.id for sequence in self.queue},
            {sequence.id for sequence in self.swapped},
            {sequence.id for sequence in self.queue.parked.values()},
        ]
        for queue in (self.queue, self.swapped):
            queue.check()
        assert sum(map(len, places)) == len(self.live), "lost or doubled"
        assert set[str]().union(*places) == self.live.keys()
        assert all(sequence.swapped for sequence in self.swapped)
        held = np.asarray(self.cache.tables.held) > 0
        assert np.array_equal(held, self.table.resident), "blocks without a resident"
        assert self.cache.index.epoch == self.table.epoch.tolist(), "epochs differ"
        stopped = self.journal.open_spell
        assert stopped is None or self.waiting, "a gate is shut, and no request waits"
