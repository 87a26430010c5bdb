import numpy as np
import pytest

from paceline.kv.evictions.pauses import BINS, EDGES, REFRESH_RETURNS, Pauses, bin_of

KIND = np.zeros(1, np.intp)


def worth(pauses: Pauses, age_s: float) -> float:
    return float(pauses.worth(KIND, np.array([age_s]))[0])


def observe(pauses: Pauses, pause_s: float, times: int = 200, kind: int = 0) -> None:
    for _ in range(times):
        pauses.waited(np.array([kind]), np.zeros(1), np.array([pause_s]))
        pauses.returned(kind, pause_s)


def test_without_observations_older_content_is_worth_less() -> None:
    pauses = Pauses(1)
    values = [worth(pauses, age) for age in (0.0, 1.0, 10.0, 100.0, 1000.0)]
    assert values == sorted(values, reverse=True)


def test_content_is_worth_most_shortly_before_it_usually_returns() -> None:
    pauses = Pauses(1)
    observe(pauses, 30.0)
    pauses.refresh(1.0)
    assert worth(pauses, 20.0) > 2 * worth(pauses, 1.0) > worth(pauses, 120.0)


def test_what_never_returns_is_told_from_what_does() -> None:
    pauses = Pauses(2)
    observe(pauses, 5.0, kind=0)
    pauses.waited(np.full(200, 1), np.zeros(200), np.full(200, 600.0))
    pauses.refresh(1.0)
    quick, never = pauses.worth(np.array([0, 1]), np.array([2.0, 2.0])).tolist()
    assert quick > 10 * never


def test_old_observations_lose_weight() -> None:
    pauses = Pauses(1)
    observe(pauses, 1.0, 1000)
    pauses.refresh(1.0)
    for round_ in range(40):
        observe(pauses, 60.0, 500)
        pauses.refresh(2.0 + round_)
    assert pauses.returns[0, bin_of(1.0)] < 50
    assert worth(pauses, 40.0) > worth(pauses, 0.5)


def test_it_is_refreshed_after_some_returns_and_some_time() -> None:
    pauses = Pauses(1)
    observe(pauses, 1.0, REFRESH_RETURNS - 1)
    assert not pauses.is_due(100.0)
    observe(pauses, 1.0, 1)
    assert pauses.is_due(100.0)
    pauses.refresh(100.0)
    observe(pauses, 1.0, REFRESH_RETURNS)
    assert not pauses.is_due(100.5)


@pytest.mark.parametrize("age_s", [0.0, 0.04, 0.06, 1.0, 77.7, 21_000.0, 1e6])
def test_bins_are_those_of_the_edges(age_s: float) -> None:
    expected = min(int(np.searchsorted(EDGES, age_s, side="right")) - 1, BINS - 1)
    assert bin_of(age_s) == expected
