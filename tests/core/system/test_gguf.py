import struct
from pathlib import Path

import gguf
import pytest

from paceline.core.errors import ConfigError
from paceline.core.system.gguf import read_metadata


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("word", "naïve ▁")
    writer.add_array("words", ["a", "", "▁b", "\n"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("scores", [0.5, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_kind_of_value_is_read(file: Path) -> None:
    assert read_metadata(file) == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -100,
        "u16": 60_000,
        "i16": -30_000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 2**63,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "word": "naïve ▁",
        "words": ["a", "", "▁b", "\n"],
        "numbers": [1, -2, 3],
        "scores": [0.5, -1.0],
    }


def test_the_reader_of_the_format_says_the_same(file: Path) -> None:
    theirs = {
        key: field.contents()
        for key, field in gguf.GGUFReader(file).fields.items()
        if not key.startswith("GGUF.")
    }
    assert read_metadata(file) == theirs


def test_tensors_behind_the_keys_are_left_alone(file: Path) -> None:
    before = read_metadata(file)
    with file.open("ab") as more:
        more.write(b"\xff" * 1000)
    assert read_metadata(file) == before


def test_a_file_cut_anywhere_is_an_error_that_names_it(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        complaint = (
            f"has {length} bytes and ends inside its header; download" if length else "empty"
        )
        with pytest.raises(ConfigError, match=rf"all\.gguf cannot be read as GGUF: .*{complaint}"):
            read_metadata(file)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\x03\x04 something else", "begins with b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 13), "kind 13"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "kind 9"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 2**61), "cannot be read"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**61), "cannot be read"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ", 3, 0, 1, 1, b"a", 8, 2**63), "cannot be read"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ1s", 3, 0, 1, 1, b"a", 8, 1, b"\xff"), "utf-8"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        read_metadata(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_metadata(tmp_path / "nowhere.gguf")
