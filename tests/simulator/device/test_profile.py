"""Profiles: their seconds, and their files."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.profile import Profile, shipped


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.load("h200-qwen3-0.6b")


@pytest.mark.parametrize("name", shipped())
def test_profiles_of_the_package_are_complete(name: str) -> None:
    profile = Profile.load(name)
    assert profile.name == name
    assert all([profile.device, profile.model, profile.notes])
    assert profile.memory.blocks(16) > 100
    assert profile.source == "estimated" or (profile.error and profile.versions)
    assert Profile.of(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.parametrize(("rows", "published_ms"), [(1, 0.785), (64, 2.10), (256, 5.72)])
def test_a_calibration_agrees_with_published_figures(
    profile: Profile, rows: int, published_ms: float
) -> None:
    batch = BatchSummary.decode(rows, 644)
    assert 1e3 * profile.device_s(batch) == pytest.approx(published_ms, rel=0.05)


def test_prompts_moves_and_the_host_add_up() -> None:
    profile = Profile.of(
        {
            "format": 1,
            "decode": {"fixed_s": 1.0, "samples": [[0, 0], [1, 0.5]]},
            "mixed": {"fixed_s": 2.0, "pairs": [[0, 0], [1, 0.1]]},
            "moves": {"swap_in": [[1, 0.25]]},
            "host": {"plan_s": 3.0, "plan_row_s": 1.0, "admit_s": 10.0, "commit_s": 0.5},
        }
    )
    assert profile.device_s(BatchSummary.decode(2, 100)) == 2.0
    assert profile.device_s(BatchSummary.prompt(4)) == 3.0
    step = BatchSummary(2, 2, 2, 9, swap_in=7, admitted=1)
    assert profile.device_s(step) == 2.25
    assert (profile.plan_s(step), profile.commit_s(step)) == (15.0, 0.5)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"format": 0}, "the format of the profile is 0"),
        ({"format": 1, "speed": 3}, "unknown fields: speed"),
        ({"format": 1, "decode": {"speed": 3}}, "decode of the profile has unknown fields: speed"),
        ({"format": 1, "decode": []}, "must be an object"),
        ({"format": 1, "decode": {"fixed_s": -1.0}}, "decode of the profile: fixed_s is -1.0"),
        ({"format": 1, "decode": {"fixed_s": "1"}}, "fixed_s is '1'; it must be of type float"),
        ({"format": 1, "decode": {"fixed_s": float("inf")}}, "fixed_s .* must be finite"),
        ({"format": 1, "decode": {"pairs": [[1]]}}, "pairs of decode of the profile: a curve is"),
        ({"format": 1, "decode": {"pairs": [[1, 10**400]]}}, "pairs of numbers"),
        ({"format": 1, "moves": {"copies": [[1, -2.0]]}}, "copies of moves .* its seconds must"),
        ({"format": 1, "decode": {"sizes": 4}}, "sizes of decode of the profile is 4; .* a list"),
        ({"format": 1, "decode": {"sizes": ["4"]}}, "sizes are .* whole numbers"),
        ({"format": 1, "decode": {"sizes": [4, 2]}}, "sizes are"),
        ({"format": 1, "decode": {"reading": [[4, 1e-8]]}}, "rows and two numbers"),
        ({"format": 1, "decode": {"reading": [[4, 0, 0], [2, 0, 0]]}}, "rows must rise"),
        ({"format": 1, "source": "dreamt"}, "source is 'dreamt'"),
        ({"format": 1, "depth": "2"}, "depth is '2'; it must be of type int"),
        ({"format": 1, "settings": [1]}, r"settings of the profile is \[1\]; it must be an object"),
        ({"format": 1, "settings": {"max_num_seqs": "9"}}, "max_num_seqs is '9'"),
    ],
)
def test_wrong_files(tmp_path: Path, values: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=complaint) as raised:
        Profile.load(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("step times", "is not JSON at line 1, column 1: 'step times'"),
        ('{\n  "format": 1,\n  depth: 2\n}', "is not JSON at line 3, column 3: 'depth: 2'"),
        ('{"format": 1,\n', "is not complete: its JSON ends in line 2"),
        ("\udcff", "is not a text: byte 0 is not UTF-8"),
        ("[" * 100_000, "is nested too deeply"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_files_that_are_no_profiles(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError, match=f"json {complaint}.*paceline calibrate.*h200-qwen3"):
        Profile.load(path)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    (folder := tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"json cannot be read: Is a directory; name a file"):
        Profile.load(folder)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="h200-qwen3"):
        Profile.load("abacus")


XEON = {"processor": "Xeon", "architecture": "x86_64"}


def measured(**more: Any) -> Profile:
    return Profile.of({"format": 1, "source": "measured", "error": {"decode_mean": 0.1}} | more)


def test_a_profile_that_is_far_off_says_so() -> None:
    wrong = measured(error={"decode_mean": 0.38, "decode_worst": 0.9, "mixed_mean": 7.59})
    (doubt,) = wrong.doubts("Xeon", "x86_64")
    assert "WARNING: this profile is 38 % (decode steps), 759 % (steps with prompts) off" in doubt
    assert wrong.errors_above(1.0) == "759 % (steps with prompts)"
    assert not measured(error={"decode_mean": 0.15, "decode_worst": 3.0}).doubts("", "")
    (doubt,) = measured(error={}).doubts("", "")
    assert "not known how far off this profile is" in doubt
    (doubt,) = Profile().doubts("", "")
    assert "estimated, not measured" in doubt


def test_a_profile_of_another_kind_of_cpu_says_so() -> None:
    assert not measured(**XEON).doubts("Xeon", "x86_64")
    for here in (("Xeon", "aarch64"), ("Neoverse", "x86_64")):
        (doubt,) = measured(**XEON).doubts(*here)
        assert f"another kind of CPU than this machine has: Xeon (x86_64), not {here[0]} (" in doubt
    assert not measured().doubts("Xeon", "x86_64"), "of a GPU"


@pytest.mark.parametrize("name", shipped())
def test_profiles_of_the_package_raise_no_doubts_where_they_were_measured(name: str) -> None:
    profile = Profile.load(name)
    assert not profile.doubts(profile.processor, profile.architecture)
    assert (profile.device[:5] == "Intel") == bool(profile.processor)
    assert profile.device.startswith(profile.processor)
