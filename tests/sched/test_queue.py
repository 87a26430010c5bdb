"""Who is next: rank, front, flows, patience, parking, at a cost that does not grow."""

from collections.abc import Hashable
from math import inf
from random import Random

import pytest

from paceline.core.events import Happened
from paceline.core.request import Sequence
from paceline.core.settings.config import PolicyConfig
from paceline.sched.explain.journal import note
from paceline.sched.policy import Policy
from paceline.sched.queue import REFRESHED_PER_STEP, Flow, WaitingQueue
from tests.kept import kept
from tests.sched.support import ask, small


class Ranked(Policy):
    """Ranks and flows come from dictionaries that tests write to."""

    def __init__(self, patience_s: float = inf, refresh: bool = False) -> None:
        super().__init__(PolicyConfig(), small().state)
        self.patience_s, self.refresh = patience_s, refresh
        self.ranks: dict[str, tuple[float, ...]] = {}
        self.flows: dict[str, str] = {}
        self.flow_ranks: dict[Hashable, float] = {}
        self.asked = 0  # how often for a rank

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        self.asked += 1
        return self.ranks.get(sequence.id, ())

    def flow(self, sequence: Sequence) -> Hashable:
        return self.flows.get(sequence.id)

    def flow_rank(self, flow: Hashable) -> float:
        return self.flow_ranks.get(flow, 0.0)


class Line:
    """A queue with its policy, and sequences by name."""

    def __init__(self, names: str = "", policy: Ranked | None = None) -> None:
        self.policy = policy or Ranked()
        self.queue = WaitingQueue(self.policy)
        self.of: dict[str, Sequence] = {}
        for name in names:
            self.push(name)

    def push(self, name: str, at: float = 0.0, in_front: bool = False) -> None:
        if name not in self.of:
            request = ask(name, 3)
            self.of[name] = Sequence(request, len(self.of), 7, at, request.prompt)
            note(self.of[name], Happened.SUBMITTED, at, 0)
        self.queue.push(self.of[name], in_front)
        self.queue.check()

    def head(self, now: float = 0.0) -> str | None:
        head = self.queue.head(now)
        return head.id if head else None

    def order(self, now: float = 0.0) -> str:
        return "".join(sequence.id for sequence in self.queue.in_order(now))

    def drain(self, now: float = 0.0) -> str:
        """Everyone, in the order in which they come to the head."""
        names = ""
        while (head := self.queue.head(now)) is not None:
            self.queue.remove(head)
            self.queue.check()
            names += head.id
        return names


def test_an_empty_queue_has_no_head() -> None:
    assert Line().head() is None
    assert len(Line().queue) == 0


def test_equals_go_in_the_order_of_submission() -> None:
    line = Line("abc")
    assert len(line.queue) == 3
    assert (line.order(), line.drain()) == ("abc", "abc")


def test_a_smaller_rank_goes_first() -> None:
    line = Line()
    line.policy.ranks = {"a": (2, 0.0), "b": (1, 5.0), "c": (1, 4.0)}
    for name in "abc":
        line.push(name)
    assert (line.order(), line.drain()) == ("cba", "cba")


def test_in_front_is_ahead_of_equals_only() -> None:
    line = Line()
    line.policy.ranks = {"a": (1, 0.0), "b": (2, 0.0), "c": (2, 1.0)}
    line.push("a")
    line.push("b")
    line.push("c", in_front=True)
    assert line.drain() == "acb"


def test_who_was_put_in_front_last_stands_first() -> None:
    line = Line("a")
    line.push("y", in_front=True)
    line.push("x", in_front=True)
    assert line.drain() == "xya"


def test_nobody_waits_twice() -> None:
    line = Line("a")
    with pytest.raises(AssertionError, match="'a' waits already"):
        line.push("a")


def test_removal_is_from_anywhere_and_forgets_the_front() -> None:
    line = Line("ab")
    line.push("c", in_front=True)
    line.queue.remove(line.of["c"])
    line.queue.remove(line.of["a"])
    assert line.of["c"] not in line.queue
    line.push("c")
    assert line.drain() == "bc"


def test_a_removed_sequence_need_not_have_been_here() -> None:
    line = Line("a")
    line.queue.remove(line.of["a"])
    line.queue.remove(line.of["a"])
    assert line.head() is None


# -- parking -----------------------------------------------------------------


def test_the_parked_block_nobody_and_keep_their_place() -> None:
    line = Line("abcd")
    line.queue.park(line.of["a"], "grammar")
    line.queue.park(line.of["b"], "grammar")
    line.queue.check()
    assert (line.head(), line.order(), len(line.queue)) == ("c", "cd", 2)
    assert line.of["a"] in line.queue
    line.queue.wake(line.of["b"])
    line.queue.wake(line.of["a"])
    assert line.drain() == "abcd"


def test_a_place_in_front_survives_parking() -> None:
    line = Line("a")
    line.push("b", in_front=True)
    line.queue.park(line.of["b"], "grammar")
    line.queue.wake(line.of["b"])
    assert line.drain() == "ba"


def test_a_parked_sequence_can_be_removed() -> None:
    line = Line("ab")
    line.queue.park(line.of["a"], "grammar")
    line.queue.remove(line.of["a"])
    assert (list(line.queue.parked), line.drain()) == ([], "b")


# -- flows -------------------------------------------------------------------


def test_the_best_lane_goes_first_and_keeps_its_own_order() -> None:
    line = Line()
    line.policy.flows = {"a": "x", "b": "y", "c": "x", "d": "y"}
    line.policy.flow_ranks = {"x": 5.0, "y": 3.0}
    for name in "abcd":
        line.push(name)
    assert (line.order(), line.head()) == ("bdac", "b")
    assert line.drain() == "bdac"


def test_a_lane_that_gets_worse_gives_way() -> None:
    line = Line()
    line.policy.flows = {"a": "x", "b": "y", "c": "x", "d": "y"}
    line.policy.flow_ranks = {"x": 0.0, "y": 0.0}
    for name in "abcd":
        line.push(name)
    admitted = ""
    while (head := line.head()) is not None:
        line.queue.remove(line.of[head])
        admitted += head
        line.policy.flow_ranks[line.policy.flows[head]] += 1.0
    assert admitted == "abcd"


def test_a_lane_that_emptied_and_came_back_is_heard_again() -> None:
    line = Line()
    line.policy.flows = {"a": "x", "b": "y"}
    line.policy.flow_ranks = {"x": 1.0, "y": 2.0}
    line.push("a")
    line.push("b")
    line.queue.remove(line.of["a"])
    assert line.head() == "b"
    line.push("a")
    assert line.drain() == "ab"


# -- ranks that change -------------------------------------------------------


def test_a_rank_that_got_worse_is_noticed_at_the_head() -> None:
    line = Line(policy=Ranked(refresh=True))
    line.policy.ranks = {"a": (1,), "b": (2,), "c": (3,)}
    for name in "abc":
        line.push(name)
    line.policy.ranks["a"] = (2.5,)
    assert line.head() == "b"
    line.queue.check()
    assert line.drain() == "bac"


def test_a_rank_that_got_better_is_noticed_when_its_turn_comes() -> None:
    line = Line(policy=Ranked(refresh=True))
    names = "abcdefghijklmnop"
    for rank, name in enumerate(names):
        line.policy.ranks[name] = (rank,)
        line.push(name)
    line.policy.ranks["p"] = (-1,)
    assert line.head() == "a"
    for _ in range(len(names) // REFRESHED_PER_STEP):
        line.queue.refresh()
    line.queue.check()
    assert line.head() == "p"
    line.policy.ranks["o"] = (-2,)  # and once more, for its turn comes round
    for _ in range(len(names) // REFRESHED_PER_STEP):
        line.queue.refresh()
    assert line.head() == "o"
    assert line.drain() == "op" + names[:-2]


def test_if_a_great_many_got_worse_at_once_a_step_asks_only_a_few() -> None:
    line = Line(policy=Ranked(refresh=True))
    for number in range(100):
        line.policy.ranks[f"r{number}"] = (number,)
        line.push(f"r{number}")
    for number in range(100):
        line.policy.ranks[f"r{number}"] = (1000 - number,)
    asked: list[int] = []
    for _ in range(3):
        before = line.policy.asked
        line.queue.refresh()
        line.head()
        asked.append(line.policy.asked - before)
    assert all(REFRESHED_PER_STEP < one <= 4 * REFRESHED_PER_STEP for one in asked)
    for _ in range(50):
        line.queue.refresh()
        line.head()
    assert line.drain().startswith("r99r98r97")


def test_a_refresh_forgets_those_who_left() -> None:
    line = Line("ab", policy=Ranked(refresh=True))
    line.queue.remove(line.of["a"])
    line.queue.refresh()
    line.queue.remove(line.of["b"])
    line.queue.refresh()
    line.queue.refresh()
    assert line.head() is None


def test_superseded_places_do_not_pile_up() -> None:
    """Ranks that change for ever cost memory in proportion to those who wait."""
    line = Line(policy=Ranked(refresh=True))
    for rank, name in enumerate("abcd"):
        line.policy.ranks[name] = (rank,)
        line.push(name)
    for turn in range(2000):
        line.policy.ranks["d"] = (10 + turn,)
        line.queue.refresh()
    line.queue.check()
    assert kept(line.queue, Flow) < 300
    assert line.drain() == "abcd"


def test_comings_and_goings_leave_nothing_behind() -> None:
    """Flows that emptied, entries of those who left: all is swept up in time."""
    line = Line("ab", policy=Ranked(patience_s=10.0, refresh=True))
    for number in range(1000):
        name = f"r{number}"
        line.policy.flows[name] = name
        line.push(name, at=float(number))
        line.queue.remove(line.of[name])
        line.queue.park(line.of["b"], "grammar")
        line.queue.wake(line.of["b"])
    line.queue.check()
    assert kept(line.queue, Flow) < 900
    assert line.head(now=5.0) == "a"
    assert line.drain(now=50.0) == "ab"


# -- patience ----------------------------------------------------------------


def aged_line() -> Line:
    line = Line(policy=Ranked(patience_s=10.0))
    line.policy.ranks = {"a": (9,), "b": (1,), "c": (5,)}
    line.push("a", at=0.0)
    line.push("b", at=1.0)
    line.push("c", at=4.0)
    return line


def test_who_waited_too_long_goes_first_oldest_first() -> None:
    line = aged_line()
    assert [line.head(now) for now in (0.0, 9.9, 10.0, 99.0)] == ["b", "b", "a", "a"]
    assert [line.order(now) for now in (0.0, 10.0, 99.0)] == ["bca", "abc", "abc"]
    assert line.drain(now=99.0) == "abc"


def test_patience_is_not_asked_of_those_who_left() -> None:
    line = aged_line()
    line.queue.remove(line.of["a"])
    line.queue.park(line.of["b"], "grammar")
    assert line.queue.impatient(10.0) is None
    assert line.queue.impatient(14.0) is line.of["c"]
    assert line.queue.impatient(99.0) is line.of["c"]


def test_the_parked_age_too() -> None:
    line = aged_line()
    line.queue.park(line.of["a"], "grammar")
    line.queue.wake(line.of["a"])
    assert line.head(now=10.0) == "a"


def test_an_empty_queue_is_patient() -> None:
    assert Line(policy=Ranked(patience_s=1.0)).queue.impatient(99.0) is None


# -- against a list ----------------------------------------------------------


@pytest.mark.parametrize("patience_s", [inf, 20.0])
def test_random_comings_and_goings_follow_the_rank(patience_s: float) -> None:
    """The lazy heaps agree with sorting everybody anew, whatever happens."""
    random = Random(5)
    line = Line(policy=Ranked(patience_s=patience_s))
    for number in range(300):
        name, now = f"r{number}", float(number // 3)
        line.policy.ranks[name] = (random.randint(0, 5), random.randint(0, 5))
        line.policy.flows[name] = random.choice("xyz")
        line.push(name, at=now, in_front=random.random() < 0.2)
        if random.random() < 0.5:
            head = line.queue.head(now)
            assert head is not None
            line.queue.remove(random.choice([head, *line.queue]))
        if random.random() < 0.3:
            flow = random.choice("xyz")
            line.policy.flow_ranks[flow] = line.policy.flow_ranks.get(flow, 0.0) + 1.0
        order = line.queue.in_order(now)
        first = next(iter(order), None)
        assert line.queue.head(now) is first
        most = random.choice([0, 1, 5, 400])
        assert line.queue.first(most, now) == order[:most]
        if random.random() < 0.2 and first is not None:
            line.queue.remove(first)
    assert len(line.queue) > 50


def test_the_check_notices_a_sequence_in_two_places() -> None:
    line = Line("a")
    line.queue.parked[0] = line.of["a"]
    with pytest.raises(AssertionError, match="waiting and parked"):
        line.queue.check()


def test_the_check_notices_a_place_that_is_in_no_lane() -> None:
    line = Line("ab")
    line.queue._flows[None].pop()
    with pytest.raises(AssertionError, match="a place is lost"):
        line.queue.check()


def test_a_successor_has_the_place_of_the_one_before() -> None:
    line = Line("abc")
    line.queue.remove(line.of["c"])
    line.push("c", in_front=True)
    line.push("d", in_front=True)
    for name, successor in (("c", "x"), ("a", "y")):
        request = ask(successor, 3)
        line.of[successor] = Sequence(request, 10 + len(line.of), 7, 0.0, request.prompt)
        note(line.of[successor], Happened.SUBMITTED, 0.0, 0)
        line.queue.replace(line.of[name], line.of[successor])
        line.queue.check()
    assert [one.id for one in line.queue.in_order(0.0)] == ["d", "x", "b", "y"]
    line.queue.park(line.of["x"], "grammar")
    line.queue.replace(line.of["x"], line.of["c"])
    assert [one.id for one in line.queue.parked.values()] == ["c"]
    line.queue.wake(line.of["c"])
    assert [one.id for one in line.queue.in_order(0.0)] == ["d", "c", "b", "y"]


def test_after_a_sweep_ranks_are_still_asked_for_in_turn() -> None:
    policy = Ranked(refresh=True)
    policy.ranks = {"a": (0.0,), "b": (0.0,), "c": (1.0,)}
    line = Line("abc", policy)
    for number in range(100):
        line.push(f"passing{number}")
        line.queue.remove(line.of[f"passing{number}"])
    assert line.head() == "a"
    policy.ranks["c"] = (-1.0,)
    for _ in range(20):
        line.queue.refresh()
    assert line.head() == "c"


# -- looking past the head ----------------------------------------------------


def test_the_next_one_is_found_while_the_head_keeps_its_place() -> None:
    line = Line("abcd")
    line.queue.set_aside(line.of["a"])
    assert (line.head(), len(line.queue), line.order()) == ("b", 4, "abcd")
    line.queue.set_aside(line.of["b"])
    line.queue.remove(line.of["c"])
    assert line.head() == "d"
    line.queue.put_back()
    assert line.drain() == "abd"


def test_there_is_no_head_while_all_are_set_aside() -> None:
    line = Line("ab")
    for name in "ab":
        line.queue.set_aside(line.of[name])
    assert line.head() is None
    line.queue.put_back()
    assert line.drain() == "ab"


def test_only_the_head_is_set_aside() -> None:
    line = Line("ab")
    with pytest.raises(AssertionError, match="'b' is not at the head"):
        line.queue.set_aside(line.of["b"])


def test_a_check_notices_one_that_was_not_put_back() -> None:
    line = Line("ab")
    line.queue.set_aside(line.of["a"])
    with pytest.raises(AssertionError, match="still set aside"):
        line.queue.check()


def test_looking_past_the_same_ones_again_and_again_leaves_nothing_behind() -> None:
    line = Line("abcd")
    line.policy.flows = dict(zip("abcd", "xyxy", strict=True))
    for _ in range(1_000):
        while (head := line.queue.head(0.0)) is not None:
            line.queue.set_aside(head)
        line.queue.put_back()
    assert kept(line.queue, Flow) <= 8 * 4
    assert line.drain() == "abcd"


def test_a_sweep_while_some_are_set_aside_loses_none() -> None:
    line = Line("abc")
    line.queue.set_aside(line.of["a"])
    for _ in range(100):  # superseded entries, until they are swept up
        line.queue.park(line.of["c"], "grammar")
        line.queue.wake(line.of["c"])
    assert kept(line.queue, Flow) < 200
    assert line.head() == "b"
    line.queue.put_back()
    assert line.drain() == "abc"


def test_the_overtaken_are_counted_until_they_leave() -> None:
    line = Line("ab")
    for _ in range(3):
        line.queue.overtake(line.of["a"])
    assert [line.queue.overtaken(line.of[name]) for name in "ab"] == [3, 0]
    line.queue.remove(line.of["a"])
    assert line.queue.overtaken(line.of["a"]) == 0
    line.push("a")
    line.queue.check()


@pytest.mark.parametrize("seed", range(20))
def test_looking_past_any_number_follows_the_order(seed: int) -> None:
    random, line = Random(seed), Line()
    names = [chr(ord("a") + number) for number in range(20)]
    for name in names:
        line.policy.flows[name] = random.choice("xyz")
        line.policy.ranks[name] = (random.randint(0, 3),)
    line.policy.flow_ranks = {flow: random.randint(0, 2) for flow in "xyz"}
    for name in names:
        line.push(name, in_front=random.random() < 0.3)
    while len(line.queue):
        expected, seen = list(line.order()), list[str]()
        for _ in range(random.randint(0, len(line.queue))):
            head = line.queue.head(0.0)
            assert head is not None
            seen.append(head.id)
            line.queue.set_aside(head)
        assert seen == expected[: len(seen)]
        if (head := line.queue.head(0.0)) is not None and random.random() < 0.7:
            line.queue.remove(head)
        line.queue.put_back()
        line.queue.check()
        assert line.order() == "".join(one for one in expected if line.of[one] in line.queue)
