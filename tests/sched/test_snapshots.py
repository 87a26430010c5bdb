"""Where states are kept, and how much of a prompt a later request finds."""

from typing import Any

import pytest

from paceline import Scheduler
from paceline.core.errors import ConfigError
from paceline.core.settings.config import CacheConfig
from paceline.sched.snapshots import KNOWN, Auto, Block, Last, NoSnapshots, SnapshotPoint, load
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import answer, ask, commit, small, state, step

PRICE = 8  # tokens: two blocks of 4


def stateful(**settings: Any) -> Scheduler:
    roomy = {"num_blocks": 4096, "max_model_len": 4096, "max_num_batched_tokens": 4096}
    return small(**roomy | {"state_blocks": 2, "block_size": 16} | settings)


def run(scheduler: Scheduler, name: str, prompt: list[int], most: int = 2) -> int:
    """Serve a request alone. Returns how many of its tokens were found."""
    scheduler.submit(ask(name, prompt, max_tokens=most), 0.0)
    plan = scheduler.plan(0.0)
    found: int = state(scheduler, name)["cached"]
    scheduler.commit(plan, answer(plan), 0.0)
    while not scheduler.idle:
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, answer(plan), 0.0)
    scheduler.check()
    return found


def unique(number: int, count: int) -> list[int]:
    return [100_000 + 5_000 * number + at for at in range(count)]


@pytest.mark.parametrize("shared", [1600, 1500, 1507])
def test_hits_do_not_depend_on_where_the_shared_prefix_ends(shared: int) -> None:
    """vllm#45238: of 64 prompts that share 1,600 tokens 52 found them, and of 64 that share 1,500
    tokens none. The first prompt leaves KV, the second a snapshot where it branches."""
    scheduler, prefix = stateful(), list(range(shared))
    found = [run(scheduler, f"r{at}", prefix + unique(at, 2200 - shared)) for at in range(64)]
    assert found == [0, 0] + [shared // 16 * 16] * 62


@pytest.mark.parametrize("size", [1, 16])
def test_a_prompt_that_is_asked_again_is_found(size: int) -> None:
    """sglang#22935: the last token must be computed again, so a snapshot behind the prompt is of no
    use to the same prompt."""
    scheduler, prompt = stateful(block_size=size), list(range(200))
    found = [run(scheduler, f"r{at}", prompt) for at in range(4)]
    assert found == [0, 0] + [199 // size * size] * 2


def test_a_conversation_goes_on_where_the_turn_before_it_ended() -> None:
    """At any position: the blocks that are filled in part are copied."""
    scheduler, history = stateful(), list(range(101))
    for turn in range(5):
        name = f"turn{turn}"
        found = run(scheduler, name, history, most=7)
        assert found == (len(history) - 12 if turn else 0)  # 11 new tokens, and the last answer's
        history = [*history, *[9] * 7, *unique(turn, 11)]
    assert scheduler.state.stats.copied_blocks


def test_a_reply_that_is_not_in_the_next_prompt_costs_nothing_before_it() -> None:
    scheduler, prompt = stateful(), list(range(101))
    run(scheduler, "thinks", prompt, most=50)
    assert run(scheduler, "next", [*prompt, 1, 2, 3], most=2) == 101


def test_long_prompts_have_snapshots_as_far_apart_as_they_are_worth() -> None:
    scheduler = stateful(max_num_batched_tokens=40)
    run(scheduler, "a", list(range(400)))
    assert run(scheduler, "b", [*range(300), 7, 7, 7]) == 240  # a chunk ends there
    kept = stateful(max_num_batched_tokens=40, state_blocks=40)
    run(kept, "a", list(range(400)))
    assert run(kept, "b", [*range(300), 7, 7, 7]) == 0


@pytest.mark.parametrize(("snapshots", "found"), [("none", 0), ("last", 0), ("block", 304)])
def test_other_policies(snapshots: str, found: int) -> None:
    scheduler = stateful(snapshots=snapshots)
    run(scheduler, "a", list(range(400)))
    assert run(scheduler, "b", [*range(310), 7, 7, 7]) == found


def test_explain_says_why_a_hit_is_as_long_as_it_is() -> None:
    scheduler = stateful()
    run(scheduler, "a", list(range(400)))
    run(scheduler, "b", [*range(300), 7, 7])
    line = "0 tokens came from the prefix cache. KV of 288 tokens is cached; there is no snapshot."
    assert line in scheduler.explain("b")
    run(scheduler, "c", [*range(390), 7])
    line = (
        "288 tokens came from the prefix cache. KV of 384 tokens is cached; the deepest snapshot "
    )
    assert line + "is at 288." in scheduler.explain("c")
    run(scheduler, "d", [*range(300), 7, 7, 8])
    assert "is cached" not in scheduler.explain("d")


def test_a_prompt_that_needs_all_blocks_is_computed_again() -> None:
    """Its hit would have to be held beside it."""
    scheduler = small(state_blocks=3, num_blocks=16)
    scheduler.submit(ask("a", range(40), max_tokens=2), 0.0)
    while not scheduler.idle:
        step(scheduler)
    scheduler.submit(ask("b", range(62), max_tokens=2), 0.0)
    assert step(scheduler)["tokens"] == {"b": 32}
    assert "KV of 40 tokens is cached; there is no snapshot" in scheduler.explain("b")


def test_a_long_row_is_cut_only_in_chunks() -> None:
    whole = stateful(enable_chunked_prefill=False)
    run(whole, "a", list(range(400)))
    whole.submit(ask("b", [*range(300), 7]), 0.0)
    assert step(whole)["tokens"] == {"b": 301}
    cut = stateful()
    run(cut, "a", list(range(400)))
    cut.submit(ask("b", [*range(300), 7]), 0.0)
    assert step(cut)["tokens"] == {"b": 288}


def test_a_state_that_a_sample_of_the_future_went_into_is_not_kept() -> None:
    """With three steps in flight, the last one has computed a token that the host never saw."""
    scheduler = stateful()
    scheduler.submit(ask("a", 33, max_tokens=9, stop_token_ids=(5,)), 0.0)
    plans = [scheduler.plan(0.0) for _ in range(3)]
    commit(scheduler, plans[0], a=[5])
    later = scheduler.plan(0.0)
    assert not later.states.saves_before
    two = stateful()
    two.submit(ask("a", 33, max_tokens=9, stop_token_ids=(5,)), 0.0)
    plans = [two.plan(0.0) for _ in range(2)]
    commit(two, plans[0], a=[5])
    assert [slot for slot, _ in two.plan(0.0).states.saves_before] == [0]


POLICIES = {"auto": Auto, "block": Block, "last": Last, "none": NoSnapshots}


def test_policies_have_names() -> None:
    assert KNOWN == POLICIES
    for name, kind in POLICIES.items():
        assert type(load(CacheConfig(snapshots=name))) is kind
    assert type(load(CacheConfig(snapshots="paceline.sched.snapshots.Last"))) is Last
    with pytest.raises(ConfigError, match="no snapshots 'often': there are auto, block, last, non"):
        load(CacheConfig(snapshots="often"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("auto", {(point, 21) for point in SnapshotPoint}),
        ("last", {(SnapshotPoint.PROMPT, 21), (SnapshotPoint.TURN, 21)}),
        ("none", set[Any]()),
        ("block", {(point, 24) for point in SnapshotPoint}),
    ],
)
def test_what_policies_want(name: str, wanted: set[tuple[SnapshotPoint, int]]) -> None:
    policy = load(CacheConfig(block_size=4, state_blocks=2, snapshots=name))
    assert policy.price == PRICE
    for point in SnapshotPoint:
        assert policy.wants(point, 21, 5, 16) == ((point, 21) in wanted)
        if name == "block":
            assert policy.wants(point, 24, 5, 16)


def test_auto_weighs_the_distance_of_chunks() -> None:
    auto = load(CacheConfig(block_size=4, state_blocks=2))
    far = 2 * PRICE
    assert auto.wants(SnapshotPoint.CHUNK, 5 + far, 5, far)
    assert not auto.wants(SnapshotPoint.CHUNK, 4 + far, 5, far)
    assert not auto.wants(SnapshotPoint.CHUNK, 5 + far, 5, far - 1)
    assert not auto.wants(SnapshotPoint.PROMPT, 5, 5, 0)
    assert (auto.branch(8, 12), auto.branch(12, 12)) == (12, 0)
    assert (auto.end(3, 12), auto.end(12, 12), auto.end(3, 0)) == (12, 0, 0)
    block = load(CacheConfig(block_size=4, state_blocks=2, snapshots="block"))
    assert not block.supersedes(SnapshotPoint.TURN, SnapshotPoint.CHUNK)
    assert [block.end(start, 0) for start in (0, 3, 4)] == [4, 4, 8]


def test_auto_learns_whether_hits_end_behind_prompts_or_turns() -> None:
    auto = load(CacheConfig(block_size=4, state_blocks=2))
    prompt, turn, chunk, branch = (
        SnapshotPoint[name] for name in ["PROMPT", "TURN", "CHUNK", "BRANCH"]
    )
    assert auto.supersedes(prompt, chunk)
    assert auto.supersedes(turn, turn)
    assert not auto.supersedes(turn, branch)
    assert not auto.supersedes(branch, chunk)
    for hits in range(4):
        assert auto.supersedes(turn, prompt) == (hits > 2)
        auto.used(turn)
    auto.used(prompt)
    assert not auto.supersedes(turn, prompt)


def test_a_connector_that_takes_no_states_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not transfer states: remove it"):
        stateful().connect(ScriptedConnector())
