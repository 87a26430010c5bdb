from pathlib import Path

import gguf
import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.runner.weights.gguf_file import ENCODINGS, OTHERS, GGUFTensor, read_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a field of every type, and tensors that need padding between them."""
    path = tmp_path / "some.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_int64("a.i64", -(1 << 60))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "Grüße, 世界")
    writer.add_array("a.texts", ["x", "", "yy"])
    writer.add_array("a.numbers", [3, 1, 2])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_and_tensors(path: Path) -> None:
    file = read_gguf(path)
    told = {name: value for name, value in file.fields.items() if name.startswith("a.")}
    assert told == {
        "a.u8": 200,
        "a.i8": -100,
        "a.u16": 60_000,
        "a.i16": -30_000,
        "a.u32": 4_000_000_000,
        "a.i32": -2_000_000_000,
        "a.u64": 1 << 60,
        "a.i64": -(1 << 60),
        "a.f32": 0.5,
        "a.f64": 0.1,
        "a.bool": True,
        "a.text": "Grüße, 世界",
        "a.texts": ["x", "", "yy"],
        "a.numbers": [3, 1, 2],
    }
    assert file.fields["general.architecture"] == "llama"
    first, second = file.tensors["first"], file.tensors["second"]
    assert (first.shape, first.encoding.name) == ((2, 3), "F32")
    assert first.blocks.view(np.float32).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert (second.shape, second.encoding.name) == ((5,), "F16")
    assert second.blocks.view(np.float16).ravel().tolist() == [0, 1, 2, 3, 4]


def test_a_file_cut_off_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    whole, cut = path.read_bytes(), tmp_path / "cut.gguf"
    end = len(whole.rstrip(b"\0"))
    for length in [0, 3, 4, 7, 20, 60, 200, end // 2]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"cut\.gguf cannot be read as GGUF: .* download it"):
            read_gguf(cut)


def test_a_file_without_its_last_tensors_is_incomplete(path: Path, tmp_path: Path) -> None:
    whole, cut = path.read_bytes(), tmp_path / "cut.gguf"
    end = len(whole.rstrip(b"\0"))  # "second" has no zero at its end
    cut.write_bytes(whole[:end])
    assert len(read_gguf(cut).tensors) == 2
    for missing in (1, 12, 40):
        cut.write_bytes(whole[: end - missing])
        counts = rf"has {end - missing:,} of {end:,} bytes\): download it again"
        with pytest.raises(ConfigError, match=rf"cut\.gguf .* incomplete \({counts}"):
            read_gguf(cut)


def test_what_is_no_gguf_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    with pytest.raises(ConfigError, match=r"other\.gguf"):
        read_gguf(other)
    other.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ConfigError, match="letters GGUF"):
        read_gguf(other)
    whole = path.read_bytes()
    other.write_bytes(whole[:4] + b"\1" + whole[5:])
    with pytest.raises(ConfigError, match="version is 1"):
        read_gguf(other)


def test_a_type_of_tensor_that_nobody_can_read(tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    blocks = np.zeros((1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.IQ2_XS][1]), np.uint8)
    writer.add_tensor("odd", blocks, raw_dtype=gguf.GGMLQuantizationType.IQ2_XS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    complaint = "'odd' has type IQ2_XS, which is not supported; .* F32, .*Q4_K, .*MXFP4"
    with pytest.raises(ConfigError, match=complaint):
        read_gguf(path)


def test_every_type_of_the_format_has_its_name() -> None:
    for kind in gguf.GGMLQuantizationType:
        known = ENCODINGS.get(int(kind))
        assert (known.name if known else OTHERS[int(kind)]) == kind.name
    assert not ENCODINGS.keys() & OTHERS.keys()


def test_a_part_of_a_tensor_is_some_of_its_blocks() -> None:
    blocks = np.arange(12 * 34, dtype=np.uint32).astype(np.uint8).reshape(12, 34)
    whole = GGUFTensor((3, 2, 64), ENCODINGS[8], blocks)
    part = whole.part(1)
    assert part.shape == (2, 64)
    assert np.array_equal(part.blocks, blocks[4:8])
