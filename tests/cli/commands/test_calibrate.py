"""`paceline calibrate`: what it says of the profile that it wrote."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.simulator.device.profile import Profile
from paceline.wiring import calibration

WRITTEN = Profile(
    name="own",
    source="measured",
    notes="Fitted to 4 kinds of decode steps.",
    error={"decode_mean": 0.38, "decode_worst": 0.9, "mixed_mean": 0.02},
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each calibration got; none of them measures anything."""
    found = list[float]()

    def measured(_model: str, _name: str, limit_s: float, *_: Any, **_settings: Any) -> Profile:
        found.append(limit_s)
        return WRITTEN

    monkeypatch.setattr(calibration, "measured_profile", measured)
    return found


def test_a_profile_that_is_far_off_is_written_with_a_warning(
    asked: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.json"
    assert main(["calibrate", "smollm2", "-o", str(path), "--seconds", "30"]) == 1
    said = capsys.readouterr()
    assert "decode_mean 38.0 %, decode_worst 90.0 %, mixed_mean 2.0 %" in said.out
    assert "WARNING: the profile is 38 % (decode steps) off on steps that the fit" in said.err
    assert "Fitted to 4 kinds of decode steps. Measure again on a machine" in said.err
    assert Profile.load(path) == WRITTEN
    assert asked == [30.0]
    assert main(["calibrate", "smollm2", "-o", str(path), "--max-error", "40"]) == 0
    assert "WARNING" not in capsys.readouterr().err


def test_a_good_profile_is_printed_without_a_word(
    asked: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = replace(WRITTEN, error={"decode_mean": 0.14, "mixed_mean": 0.02})
    monkeypatch.setattr(calibration, "measured_profile", lambda *_, **_settings: good)
    assert main(["calibrate", "smollm2"]) == 0
    said = capsys.readouterr()
    assert Profile.of(json.loads(said.out)) == good
    assert "WARNING" not in said.err
    assert not asked


def test_fewer_seconds_than_it_takes_are_refused(
    asked: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", "smollm2", "--seconds", "3"])
    assert caught.value.code == 2
    assert "'--seconds'" in capsys.readouterr().err
    assert not asked
