"""Points over time, in spans that grow."""

from paceline.simulator.results.timeline import FIRST_WIDTH_S, POINTS, Occupancy, Timeline


def test_a_span_has_its_largest_numbers_and_its_tokens() -> None:
    line = Timeline()
    line.add(0.01, Occupancy(1, 5, 10))
    line.add(0.02, Occupancy(2, 3, 9))
    line.add_tokens_at(0.02, 4)
    line.add_tokens_at(0.03, 2)
    line.add_tokens_at(0.27, 2)
    line.add(0.27, Occupancy(1, 0, 0))
    assert line.to_dict() == {
        "time_s": [0.0, FIRST_WIDTH_S],
        "running": [2, 1],
        "waiting": [5, 0],
        "used_blocks": [10, 0],
        "tokens_per_s": [6 / FIRST_WIDTH_S, 2 / FIRST_WIDTH_S],
    }


def test_a_long_run_has_no_more_points() -> None:
    line = Timeline()
    for second in range(1500):
        line.add(float(second), Occupancy(second, 0, 0))
        line.add_tokens_at(float(second), 1)
    found = line.to_dict()
    assert len(found["time_s"]) <= POINTS
    assert max(found["running"]) == 1499
    assert sum(found["tokens_per_s"]) * line.width_s == 1500


def test_several_timelines_add_up() -> None:
    short, long = Timeline(), Timeline()
    for line, seconds in ((short, 10), (long, 300)):
        for second in range(seconds):
            line.add(float(second), Occupancy(2, 1, 3))
            line.add_tokens_at(float(second), 5)
        line.add(seconds - 0.5, Occupancy(0, 0, 0))
    total = Timeline.of_all([short, long])
    found = total.to_dict()
    assert sum(found["tokens_per_s"]) * total.width_s == 5 * 310
    assert (found["running"][0], found["running"][-2]) == (4, 2)


def test_a_long_step_hides_nothing() -> None:
    """The spans inside it have the numbers from before."""
    line = Timeline()
    for at, running in ((0.1, 2), (1.6, 3), (1.7, 0), (3.0, 1)):
        line.add(at, Occupancy(running, 0, 8 * running))
    found = line.to_dict()
    assert found["running"] == [2, 2, 2, 2, 2, 2, 3, *[0] * 5, 1]
    assert found["used_blocks"] == [8 * running for running in found["running"]]
    line._halve()
    assert line.to_dict()["running"] == [2, 2, 2, 3, 0, 0, 1]
    assert Timeline.of_all([line, line]).to_dict()["running"] == [4, 4, 4, 6, 0, 0, 2]
