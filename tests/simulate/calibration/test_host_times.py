"""Terms of the host, from times that are known."""

import pytest

from paceline.core.config import Config
from paceline.simulate.calibration import host_times
from paceline.simulate.calibration.host_times import HostSeconds, host_terms
from paceline.simulate.profile import HostTerms


def known(config: Config, rows: int) -> HostSeconds:
    plans, commits = [100.0 + rows] * 3, [200.0 + 2 * rows] * 3
    return HostSeconds(plans, commits, admitting=7.0 * rows, finishing=9.0 * rows)


def test_each_time_becomes_its_own_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_times, "run", known)
    assert host_terms(Config.of(max_num_seqs=64)) == HostTerms(
        plan_s=100.0, plan_row_s=1.0, admit_s=7.0, finish_s=9.0, commit_s=200.0, commit_row_s=2.0
    )
