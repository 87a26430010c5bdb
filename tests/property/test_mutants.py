"""A test of the tests: bugs put in on purpose, each of which the schedules must notice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from paceline.core.plan import Failed, Grown
from paceline.core.request import Finish, Request
from paceline.kv.cache import KVCache
from paceline.kv.encoder_cache import EncoderCache
from paceline.kv.fence import Fence, Fences, StepTicket
from paceline.kv.group_index import GroupIndex
from paceline.kv.groups import GroupTables
from paceline.kv.hit import Hit
from paceline.kv.index import ContentIndex
from paceline.kv.keys import Keys
from paceline.kv.pool import BlockPool, UnkeyedRun
from paceline.kv.snapshots import SnapshotIndex
from paceline.kv.tables import BlockTables
from paceline.kv.tier import HostTier, Stored
from paceline.sched import stats as hits
from paceline.sched.admission.entrants import Entrants
from paceline.sched.admission.images_ahead import ImagesAhead
from paceline.sched.admission.prefixes import Prefixes
from paceline.sched.commit.accounting import Accounting
from paceline.sched.commit.stops import StopWatch
from paceline.sched.disciplines.prefill_first import PrefillFirst
from paceline.sched.disciplines.unified import Unified
from paceline.sched.groups.beams import BeamSearch
from paceline.sched.groups.forks import ChildAborts, Forks
from paceline.sched.groups.group import LOCKSTEP, SequenceGroup
from paceline.sched.lifecycle.arrivals import Arrivals
from paceline.sched.lifecycle.departures import Departures
from paceline.sched.lifecycle.failures import Failures
from paceline.sched.lifecycle.timeouts import QueueLimits
from paceline.sched.queue import WaitingQueue
from paceline.sched.slots import SlotTable
from paceline.sched.state import Changes
from paceline.sched.stats import Stats
from paceline.sched.steady import Steady
from paceline.sched.transfers.states import States
from paceline.sched.transfers.swapping import Swapping
from tests.property.schedules import drive


def pictured(seed: int) -> Any:
    return drive(seed, pictured=True)


def grouped(seed: int) -> Any:
    return drive(seed, grouped=True)


def stateful(seed: int) -> Any:
    return drive(seed, stateful=True)


TRIES = 150  # schedules within which a mutant has to be caught

Mutant = Callable[[Any], Any]
MUTANTS: list[tuple[Any, str, Mutant, Callable[[int], Any], int]] = []


def mutant(
    owner: Any, name: str, schedule: Callable[[int], Any] = drive, seed: int = 0
) -> Callable[[Mutant], Mutant]:
    """Register a function that takes the original method and returns a broken one, and the kind
    of schedule that must notice it. `seed` is tried first: that schedule noticed it before."""

    def register(make: Mutant) -> Mutant:
        MUTANTS.append((owner, name, make, schedule, seed))
        return make

    return register


@mutant(BlockPool, "_forget", seed=1)
def taken_blocks_keep_their_key(_original: Any) -> Any:
    return lambda self, block, key: None


@mutant(BlockPool, "free_among", seed=14)
def hits_on_the_free_list_cost_nothing(_original: Any) -> Any:
    return lambda self, blocks: 0


@mutant(BlockPool, "drop")
def a_block_is_free_while_someone_still_holds_it(_original: Any) -> Any:
    def drop(self: Any, blocks: Any) -> None:
        for block in blocks:
            self._holders[block] = 0
            self._idle[block] = None

    return drop


@mutant(BlockTables, "attach", seed=2)
def new_blocks_are_taken_before_hits_are_held(_original: Any) -> Any:
    def attach(self: BlockTables, slot: int, hit: Hit, tokens: int) -> Any:
        pool = self._pool  # pyright: ignore[reportPrivateUsage]
        fresh = tuple(pool.take(-(-tokens // self.block_size) - len(hit.device)))
        pool.hold(hit.device)
        self.place(slot, hit.device + fresh)
        return (hit.device + fresh,)

    return attach


@mutant(KVCache, "lookup", seed=4)
def the_last_token_may_come_from_the_cache(_original: Any) -> Any:
    def lookup(self: KVCache, sequence: Any, *more: Any) -> Hit:
        self.index.extend_keys(sequence)
        blocks = self.pool.find(sequence.keys)
        return Hit(tuple(blocks), len(blocks) * self.block_size)

    return lookup


@mutant(ContentIndex, "retract", seed=36)
def a_failed_step_leaves_its_blocks_findable(_original: Any) -> Any:
    def retract(self: ContentIndex, owner: Any = None) -> dict[int, bytes]:
        self._pending.clear()
        return {}

    return retract


@mutant(KVCache, "seal", seed=4)
def one_block_too_many_is_sealed(original: Any) -> Any:
    def seal(self: KVCache, slot: int, sequence: Any, tokens: int, step: Any) -> None:
        held = int(self.tables.held[slot]) * self.block_size
        original(self, slot, sequence, min(tokens + self.block_size, held), step)

    return seal


@mutant(KVCache, "release", seed=4)
def blocks_are_left_behind_that_are_not_computed(original: Any) -> Any:
    def release(self: KVCache, slot: int, sequence: Any, tokens: int = 0) -> None:
        original(self, slot, sequence, len(sequence.tokens))

    return release


@mutant(UnkeyedRun, "lose", seed=2)
def a_run_keeps_blocks_that_are_reused(_original: Any) -> Any:
    return lambda self, block: None


@mutant(SlotTable, "take_back", seed=21)
def what_a_failed_step_was_to_fill_is_findable(_original: Any) -> Any:
    return lambda self, slot: None


@mutant(BlockTables, "short")
def one_position_too_few_is_mapped(original: Any) -> Any:
    return lambda self, slot, tokens: original(self, slot, tokens - 1)


@mutant(BlockTables, "grow")
def grown_blocks_are_listed_in_the_wrong_order(original: Any) -> Any:
    def grow(self: BlockTables, slot: Any, blocks: Any) -> Any:
        grown = original(self, slot, blocks)
        return Grown(grown.slot, grown.index, grown.block[::-1])

    return grow


@mutant(Keys, "root")
def salt_and_adapter_are_not_in_the_key(_original: Any) -> Any:
    return lambda self, request: self._plain


@mutant(SlotTable, "release")
def a_slot_that_changes_hands_keeps_its_epoch(original: Any) -> Any:
    def release(self: SlotTable, slot: int) -> Any:
        sequence = original(self, slot)
        self.epoch[slot] -= 1
        return sequence

    return release


@mutant(SlotTable, "confirm", seed=1)
def rejected_drafts_count_as_computed(original: Any) -> Any:
    return lambda self, slot, count, rejected: original(self, slot, count, np.zeros_like(rejected))


@mutant(Unified, "_draft")
def drafts_ride_on_unfinished_prompts(original: Any) -> Any:
    def draft(self: Unified, step: Any) -> Any:
        given, self._state.table.given = (
            self._state.table.given,
            np.zeros_like(self._state.table.given),
        )
        try:
            return original(self, step)
        finally:
            self._state.table.given = given

    return draft


@mutant(Departures, "preempt")
def a_preempted_sequence_forgets_its_outputs(original: Any) -> Any:
    def preempt(self: Departures, slot: int, cause: str, may_swap: bool = True) -> None:
        table = self._state.table
        table.known[slot] = table.prompt[slot]
        table.computed[slot] = min(table.computed[slot], table.prompt[slot])
        original(self, slot, cause, may_swap)

    return preempt


@mutant(Prefixes, "seal_filled", seed=4)
def a_block_is_sealed_before_its_last_position_is_handed_out(_original: Any) -> Any:
    def seal_filled(self: Prefixes, slot: int) -> bool:
        return self._seal(slot, int(self._view.table.known[slot]), self._view.step)

    return seal_filled


@mutant(Steady, "_to_edge", seed=1)
def a_steady_decode_grows_one_step_late(original: Any) -> Any:
    return lambda self, planned: original(self, planned) + 1


@mutant(Steady, "completes_some", seed=1)
def a_steady_decode_overlooks_its_limit(_original: Any) -> Any:
    return lambda self: False


@mutant(Steady, "suits", seed=1)
def unfinished_prompts_count_as_steady(_original: Any) -> Any:
    return staticmethod(lambda rows, start, table: len(rows) > 0 and not table.needs_host)


@mutant(StopWatch, "cut")
def tokens_after_the_stop_are_kept(original: Any) -> Any:
    return lambda self, table, slot, ids, count: original(self, table, slot, ids, count.copy())


@mutant(Request, "stops_at", seed=8)
def min_tokens_is_ignored(_original: Any) -> Any:
    def stops_at(self: Request, token: int, outputs: int) -> bool:
        eos = () if self.ignore_eos else self.eos_token_ids
        return token in eos or token in self.stop_token_ids

    return stops_at


@mutant(WaitingQueue, "wake", seed=1)
def a_woken_sequence_is_lost(_original: Any) -> Any:
    def wake(self: WaitingQueue, sequence: Any) -> None:
        del self.parked[sequence.serial]
        sequence.parked = ""

    return wake


@mutant(QueueLimits, "left")
def a_request_that_started_still_counts_as_waiting(_original: Any) -> Any:
    return lambda self, request_id: None


@mutant(Accounting, "_end_complete")
def the_end_of_a_request_is_told_but_not_done(original: Any) -> Any:
    def end_complete(self: Accounting, slot: Any, outputs: Any, stops: Any) -> Any:
        sequence = self._state.table.sequence
        with patch.object(Departures, "_release", lambda self, slot: sequence(slot)):
            return original(self, slot, outputs, stops)

    return end_complete


@mutant(Unified, "demand", seed=5)
def the_budget_is_not_respected(original: Any) -> Any:
    def demand(self: Unified, slot: Any) -> Any:
        with patch.object(self._state.policy, "share", lambda slot, want, budget: want):
            return original(self, slot)

    return demand


@mutant(BlockTables, "fork", seed=1)
def a_fork_shares_the_block_being_written(_original: Any) -> Any:
    def fork(self: BlockTables, parent: int, slot: int, tokens: int) -> Any:
        blocks = self.blocks(parent, end=tokens // self.block_size + 1)
        self._pool.hold(blocks)
        self.place(slot, blocks)
        return ()

    return fork


@mutant(BlockTables, "fork", seed=5)
def a_fork_forgets_to_copy(original: Any) -> Any:
    def fork(self: BlockTables, parent: int, slot: int, tokens: int) -> Any:
        original(self, parent, slot, tokens)
        return ()

    return fork


@mutant(BlockTables, "rebase", seed=5)
def a_beam_copies_the_wrong_way_round(original: Any) -> Any:
    def rebase(self: BlockTables, slot: int, parent: int, tokens: int) -> Any:
        return tuple(pair[::-1] for pair in original(self, slot, parent, tokens))

    return rebase


@mutant(KVCache, "rebase")
def a_beam_keeps_its_own_full_blocks(_original: Any) -> Any:
    def rebase(self: KVCache, slot: int, sequence: Any, parent: int, tokens: int) -> Any:
        sealed = min(self.index.sealed[slot], tokens // self.block_size)
        self.index.enter(slot, sequence, sealed)
        return self.tables._copy_of_rest(parent, slot, tokens)

    return rebase


@mutant(Fences, "add", seed=4)
def blocks_that_are_copied_to_the_host_have_no_fence(original: Any) -> Any:
    def add(self: Fences, fence: Fence) -> None:
        original(self, replace(fence, device=()) if fence.stored else fence)

    return add


@mutant(HostTier, "_contents", seed=4)
def contents_on_the_host_are_mixed_up(original: Any) -> Any:
    return lambda self, sequence, tokens: original(self, sequence, tokens)[::-1]


@mutant(HostTier, "ready", seed=319)
def a_sequence_returns_before_its_copy_is_done(_original: Any) -> Any:
    return lambda self, sequence: True


@mutant(HostTier, "discard", seed=8)
def what_the_host_keeps_for_the_aborted_leaks(_original: Any) -> Any:
    return lambda self, sequence: None


@mutant(Fences, "retract", seed=44)
def copies_of_failed_steps_count(original: Any) -> Any:
    def retract(self: Fences) -> list[int]:
        original(self)
        return []

    return retract


@mutant(HostTier, "stored", seed=4)
def one_position_too_many_comes_back(original: Any) -> Any:
    def stored(self: HostTier, sequence: Any) -> Stored:
        found = original(self, sequence)
        return Stored(found.blocks, found.tokens + 1)

    return stored


@mutant(Swapping, "_tokens", seed=4)
def positions_in_flight_count_as_computed(_original: Any) -> Any:
    return lambda self, sequence: int(self._table.planned[sequence.slot])


@mutant(Request, "child", seed=5)
def all_children_have_the_same_seed(_original: Any) -> Any:
    def child(self: Request, index: int) -> Request:
        return replace(self, id=f"{index}_{self.id}")

    return child


@mutant(Forks, "due")
def a_family_forks_before_its_prompt_is_handed_out(_original: Any) -> Any:
    return lambda self: list(self._state.sequence_groups.forking.values())


@mutant(SequenceGroup, "best", seed=5)
def the_first_children_are_returned_and_not_the_best(_original: Any) -> Any:
    def best(self: SequenceGroup) -> Any:
        if self.search is not None:
            return self.search.choices()
        ended = [self.choices[child] for child in sorted(self.choices)]
        return tuple(ended[: self.request.n]) if self.request.silent else ()

    return best


@mutant(BeamSearch, "_over", seed=13)
def a_search_never_stops_early(_original: Any) -> Any:
    return lambda self, best, length: False


@mutant(BeamSearch, "follow", seed=1)
def beams_forget_their_scores(_original: Any) -> Any:
    def follow(self: BeamSearch, assigned: Any) -> None:
        self.running = list(assigned)

    return follow


@mutant(BeamSearch, "_normalized", seed=13)
def the_length_penalty_is_ignored(_original: Any) -> Any:
    return lambda self, score, length: score


@mutant(SlotTable, "cap", seed=4)
def beams_run_ahead_of_one_another(original: Any) -> Any:
    def cap(self: SlotTable, slot: int, name: str, ceiling: int) -> None:
        if name != LOCKSTEP:
            original(self, slot, name, ceiling)

    return cap


@mutant(SlotTable, "lift", seed=4)
def lifting_one_cap_lifts_all(original: Any) -> Any:
    def lift(self: SlotTable, slot: int, name: str) -> None:
        self._caps.pop(slot, None)
        original(self, slot, name)

    return lift


@mutant(Changes, "release", seed=1)
def what_was_to_be_told_of_a_slot_outlives_it(_original: Any) -> Any:
    return lambda self, slot: self.released.append(slot)


@mutant(PrefillFirst, "_one_left", seed=3)
def prefill_and_decode_share_a_step(original: Any) -> Any:
    def one_left(self: PrefillFirst, slot: Any) -> Any:
        return np.minimum(self._state.table.remaining(slot), 4)

    return one_left


@mutant(Failures, "_forget", seed=8)
def what_a_failed_row_wrote_is_findable(original: Any) -> Any:
    def forget(self: Failures, sequence: Any) -> Any:
        with patch.object(BlockPool, "unseal", lambda self, block, key: None):
            return original(self, sequence)

    return forget


@mutant(Failures, "end", seed=5)
def a_failed_row_ends_all_of_its_step(original: Any) -> Any:
    def end(self: Failures, plan: Any, result: Any) -> Any:
        lost = tuple(Failed(row, "lost") for row in range(len(plan.rows)))
        return original(self, plan, replace(result, failed=lost))

    return end


@mutant(ChildAborts, "_leave", seed=4)
def a_child_that_ends_alone_is_still_there(_original: Any) -> Any:
    return lambda self, family, one: []


@mutant(ChildAborts, "end", seed=4)
def the_end_of_one_child_is_the_end_of_all(_original: Any) -> Any:
    def end(self: ChildAborts, leader: Any, child: int) -> Any:
        family = self._state.family(leader)
        here = family is not None and not leader.request.silent
        if not here or child not in [one.child for one in family.members]:
            return _original(self, leader, child)
        return [end for end in self._departures.dismiss(leader, Finish.ABORT) if end.child < 0]

    return end


def loading(seed: int) -> None:
    drive(seed, loading=True)


def loading_late(seed: int) -> None:
    """The same from another seed on, because few schedules notice these."""
    drive(seed + 40, loading=True)


@mutant(KVCache, "load", loading)
def what_is_found_on_the_host_is_not_copied(original: Any) -> Any:
    def load(self: KVCache, slot: int, sequence: Any, hit: Hit, step: int) -> Any:
        original(self, slot, sequence, hit, step)
        return ()

    return load


@mutant(Arrivals, "_load", loading)
def blocks_of_the_host_are_copied_in_the_wrong_order(original: Any) -> Any:
    return lambda self, sequence, hit: original(self, sequence, replace(hit, host=hit.host[::-1]))


@mutant(Fences, "add", loading)
def host_blocks_are_free_while_they_are_loaded(original: Any) -> Any:
    def add(self: Fences, fence: Fence) -> None:
        original(self, replace(fence, host=()) if fence.arriving else fence)

    return add


@mutant(Fences, "provisional", loading_late, seed=196)
def host_blocks_are_found_before_their_copy_is_confirmed(_original: Any) -> Any:
    return property(lambda self: set[int]())


@mutant(KVCache, "_find_on_host", loading, seed=1)
def the_host_part_does_not_continue_the_device_part(original: Any) -> Any:
    return lambda self, sequence, first: original(self, sequence, max(first - 1, 0))


@mutant(BlockTables, "missing", loading, seed=1)
def the_host_part_needs_no_blocks(original: Any) -> Any:
    return lambda self, hit, tokens: original(self, hit, tokens) - len(hit.host)


@mutant(KVCache, "load", loading_late, seed=18)
def what_a_failed_step_was_to_load_is_findable(_original: Any) -> Any:
    def load(self: KVCache, slot: int, sequence: Any, hit: Hit, step: int) -> Any:
        moves = hit.loads(self.tables.blocks(slot))
        device = tuple(block for _, block in moves)
        self.seal(slot, sequence, hit.tokens, None)
        self.fences.add(Fence(StepTicket(step), device, hit.host, arriving=(sequence.serial,)))
        return moves

    return load


@mutant(hits, "count", loading)
def a_host_hit_is_also_counted_as_a_device_hit(original: Any) -> Any:
    def count(stats: Stats, sequence: Any, hit: Hit, cache: KVCache) -> None:
        original(stats, sequence, hit, cache)
        stats.prefix_hits += len(hit.host) * cache.block_size

    return count


# -- images --------------------------------------------------------------------


@mutant(EncoderCache, "retract", pictured, seed=42)
def what_a_lost_step_was_to_encode_is_found(_original: Any) -> Any:
    return lambda cache: None


@mutant(ImagesAhead, "leave", pictured)
def the_images_of_one_that_leaves_stay_held(_original: Any) -> Any:
    def leave(ahead: ImagesAhead, slot: int) -> None:
        ahead._next.pop(slot, None)  # pyright: ignore[reportPrivateUsage]

    return leave


@mutant(ImagesAhead, "_hold", pictured, seed=8)
def images_are_not_held(_original: Any) -> Any:
    return lambda ahead, need: None


@mutant(ImagesAhead, "_claim", pictured)
def images_are_encoded_without_budget_and_room(_original: Any) -> Any:
    return lambda ahead, image, used: True


@mutant(ImagesAhead, "join", pictured)
def an_image_that_was_begun_counts_as_passed(original: Any) -> Any:
    return lambda ahead, sequence, computed: original(ahead, sequence, computed + 1)


@mutant(ImagesAhead, "_rows", pictured)
def a_chunk_reads_an_image_from_its_beginning(_original: Any) -> Any:
    return lambda ahead, need: ahead.cache[need.image.identity].rows[: need.end - need.first]


@mutant(GroupTables, "passing", grouped)
def a_window_passes_a_block_too_early(original: Any) -> Any:
    def passing(tables: GroupTables, slot: Any, computed: Any) -> Any:
        return original(tables, slot, computed + tables.block_size)

    return passing


@mutant(Prefixes, "give_back_unread", grouped)
def windows_pass_positions_that_are_not_confirmed(_original: Any) -> Any:
    def give_back(prefixes: Prefixes, slot: Any) -> bool:
        view = prefixes._view  # pyright: ignore[reportPrivateUsage]
        view.cache.tables.slide(slot, view.table.planned[slot])
        return True

    return give_back


@mutant(GroupIndex, "_unread", grouped, seed=2)
def a_hit_lacks_the_first_block_that_it_reads(original: Any) -> Any:
    return lambda index, kind, blocks: min(original(index, kind, blocks) + kind.slides, blocks)


@mutant(GroupIndex, "_name", grouped)
def groups_share_their_keys(_original: Any) -> Any:
    return lambda index, key, group: key


@mutant(GroupTables, "_copy_of_rest", grouped, seed=9)
def a_fork_copies_the_block_of_one_group(original: Any) -> Any:
    return lambda tables, parent, slot, tokens: original(tables, parent, slot, tokens)[:1]


@mutant(States, "distrust", stateful, seed=11)
def a_state_that_a_failed_step_advanced_is_kept(_original: Any) -> Any:
    return lambda states, slots: None


@mutant(SnapshotIndex, "retract", stateful, seed=13)
def a_failed_step_leaves_its_snapshots_findable(_original: Any) -> Any:
    return lambda index, owner=None: None


@mutant(SnapshotIndex, "_lost", stateful)
def a_snapshot_outlives_its_blocks(_original: Any) -> Any:
    return lambda index, block, key: None


@mutant(SnapshotIndex, "_rest", stateful, seed=21)
def the_tokens_behind_the_last_full_block_do_not_count(_original: Any) -> Any:
    return lambda index, sequence, tokens: bytes(tokens % index._keys.block_size)


@mutant(States, "fork", stateful)
def a_fork_has_no_copy_of_the_state(_original: Any) -> Any:
    return lambda states, parent, slot: None


@mutant(States, "admit", stateful, seed=13)
def a_hit_does_not_copy_the_partial_block(original: Any) -> Any:
    return lambda states, slot, hit: original(states, slot, hit)[:0]


@mutant(Entrants, "most", stateful)
def a_leader_begins_behind_the_fork(_original: Any) -> Any:
    return lambda entrants, head: None


@pytest.mark.parametrize(
    ("owner", "name", "make", "schedule", "first"),
    MUTANTS,
    ids=[make.__name__ for _, _, make, _, _ in MUTANTS],
)
def test_mutant_is_caught(
    owner: Any, name: str, make: Mutant, schedule: Callable[[int], Any], first: int
) -> None:
    original = getattr(owner, name)
    with patch.object(owner, name, make(original)):
        for seed in (first, *range(TRIES)):
            try:
                schedule(seed)
            except Exception:  # noqa: BLE001 - any failure counts as caught
                return
    pytest.fail(f"{TRIES} schedules did not notice: {make.__name__}")
