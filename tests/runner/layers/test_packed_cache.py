"""Packed weights on disk: the same bits, found again, and never a reason to fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.core.system.files import cache_folder, packed_folder
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.layers.packed_cache import CacheLimits, PackedCache
from paceline.runner.models.model import Model
from paceline.runner.native.library import is_available
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.fp4 import Mxfp4Matrix
from paceline.runner.weights.matrix import Matrix, PlainMatrix
from paceline.runner.weights.quantized_matrix import OrderedMatrix, groups_of_int4
from tests.runner.support import stepped, tiny

if not is_available():
    pytest.skip("needs a C compiler", allow_module_level=True)

ALL = CacheLimits(least_bytes=0, spare_bytes=0)
WEIGHTS = {"eight": torch.randn(70, 96), "four": stepped(torch.randn(33, 64))}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_text("weights")
    return file


def never() -> Matrix:
    pytest.fail("weights were packed again")


def fill(model: Path, limits: CacheLimits = ALL) -> list[Path]:
    cache = PackedCache([model], limits)
    for name, weight in WEIGHTS.items():
        cache.packed(name, lambda weight=weight: PlainMatrix(weight))
    cache.save()
    return sorted(cache_folder().rglob("*.safetensors"))


def is_packed_again(model: Path) -> bool:
    """All weights or none."""
    cache, read = PackedCache([model], ALL), []
    for name, weight in WEIGHTS.items():
        cache.packed(
            name, lambda name=name, weight=weight: read.append(name) or PlainMatrix(weight)
        )
    assert read in ([], list(WEIGHTS))
    return bool(read)


def test_products_are_the_same_bits(model: Path) -> None:
    fill(model)
    cache = PackedCache([model], ALL)
    for name, weight in WEIGHTS.items():
        x = torch.randn(3, weight.shape[1])
        found = NativeLinear(cache.packed(name, never), None, torch.float32)
        assert torch.equal(found(x), NativeLinear(weight, None, torch.float32)(x))


def test_tables_and_orders_are_kept(model: Path) -> None:
    ordered = OrderedMatrix(groups_of_int4(torch.randn(9, 64), 32), torch.randperm(64))
    matrices = {"table": Mxfp4Matrix.of(torch.randn(9, 64)), "order": ordered}
    first = PackedCache([model], ALL)
    packed = {name: first.packed(name, lambda one=one: one) for name, one in matrices.items()}
    first.save()
    again, x = PackedCache([model], ALL), torch.randn(3, 64)
    for name, due in packed.items():
        found = again.packed(name, never)
        assert (found.table is None, found.order is None) == (name != "table", name != "order")
        products = (NativeLinear(one, None, torch.float32)(x) for one in (found, due))
        assert torch.equal(*products)


def test_a_whole_model(model: Path) -> None:
    config = tiny()
    Model.load(Dummy(config), weights="int8", packed=PackedCache([model], ALL))  # packs, and saves
    checkpoint = Dummy(config, seed=5)  # other weights, which must not be read
    again = Model.load(checkpoint, weights="int8", packed=PackedCache([model], ALL))
    first = Model.load(Dummy(config), weights="int8")
    x = torch.randn(2, config.width)
    assert torch.equal(again._head(x), first._head(x))


def test_only_a_model_that_has_not_changed_is_found(model: Path) -> None:
    (before,) = fill(model)
    assert not is_packed_again(model)
    os.utime(model, ns=(1, 1))
    assert is_packed_again(model)
    (after,) = fill(model)  # the older state is deleted
    assert (after.parent, after.name != before.name) == (before.parent, True)


def test_what_weights_are_quantized_to_is_part_of_their_name(model: Path) -> None:
    fill(model)
    cache, read = PackedCache([model], ALL, quantization="int4"), []
    cache.packed("eight", lambda: read.append("eight") or PlainMatrix(WEIGHTS["eight"]))
    assert read == ["eight"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def forget(file: Path) -> None:
    file.write_bytes(b"{}")


@pytest.mark.parametrize("damage", [cut, flip, forget])
def test_a_damaged_file_is_written_again(model: Path, damage: Callable[[Path], None]) -> None:
    (file,) = fill(model)
    whole = file.read_bytes()
    damage(file)
    assert is_packed_again(model)
    assert fill(model) == [file]
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (CacheLimits(least_bytes=0, spare_bytes=1 << 60), "the disk is almost full"),
        (CacheLimits(least_bytes=1 << 30, spare_bytes=0), ""),
        (CacheLimits(least_bytes=0, most_bytes=9, spare_bytes=0), ""),
    ],
)
def test_what_does_not_fit_is_not_kept(
    model: Path, limits: CacheLimits, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert fill(model, limits) == []
    assert said in caplog.text


def test_the_models_that_were_not_used_for_longest_go_first(model: Path, tmp_path: Path) -> None:
    others, size = [tmp_path / name for name in ("first", "second")], 0
    for age, other in enumerate(others):
        other.write_text("weights")
        fill(other)
        (file,) = (cache_folder() / packed_folder(other)).iterdir()
        os.utime(file, (age, age))
        size = file.stat().st_size
    is_packed_again(others[0])  # now `second` is the oldest
    fill(model, CacheLimits(least_bytes=0, most_bytes=2 * size, spare_bytes=0))
    assert [is_packed_again(one) for one in (model, *others)] == [False, False, True]


def test_packing_says_where_the_weights_are_kept(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (file,) = fill(model)
    (said,) = [one.getMessage() for one in caplog.records if "packing weights" in one.getMessage()]
    assert said.endswith(f"once: the next start finds them in {file.parent}")
    caplog.clear()
    assert not is_packed_again(model)
    assert "packing weights" not in caplog.text
