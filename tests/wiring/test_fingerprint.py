"""The name of weights: the same for equal content, wherever it is, and another for any other."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.settings.load import LoadConfig
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from paceline.wiring.assembly import SAMPLE_BYTES, SAMPLES, fingerprint, samples
from tests.golden.small_model import small_model

OWN = LoadConfig()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


def name_of(folder: Path, own: LoadConfig = OWN, device: str = "cpu") -> str:
    return fingerprint(open_checkpoint(folder), device, own)


def test_a_copy_elsewhere_has_the_same_name(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert name_of(copy) == name_of(folder)


def test_other_weights_have_another_name(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "trained")
    (file,) = copy.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert name_of(copy) != name_of(folder)


def test_other_numbers_have_another_name(folder: Path) -> None:
    named = [
        name_of(folder, device="cuda"),
        name_of(folder, LoadConfig(dtype="float32")),
        name_of(folder, LoadConfig(weights="float32")),
        name_of(folder, LoadConfig(kv_cache_dtype="fp8")),
    ]
    assert len({name_of(folder), *named}) == 5


def test_a_shape_without_files_is_named_by_its_configuration(folder: Path) -> None:
    config = open_checkpoint(folder).config
    other = Dummy(replace(config, max_position=config.max_position + 1), device="cpu")
    names = [fingerprint(one, "cpu", OWN) for one in (Dummy(config, device="cpu"), other)]
    assert len({*names, name_of(folder)}) == 3


def test_samples_are_spread_over_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 64)
    assert b"".join(samples(file)) == file.read_bytes()
    with file.open("wb") as long:
        long.truncate(2 * SAMPLES * SAMPLE_BYTES)
    assert [len(one) for one in samples(file)] == [SAMPLE_BYTES] * SAMPLES
