"""The beginning of a recording: its settings, and the version that wrote it."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from json import loads

from paceline.core.config import Config
from paceline.sched.replay.records import FORMAT, FORMAT_NUMBER, MAGIC, RecordKind, record, to_json


@dataclass(frozen=True, slots=True)
class Preamble:
    """The settings of the recorded scheduler, and the version of paceline that wrote them."""

    made_by: str
    config: Config

    @staticmethod
    def of(config: Config) -> "Preamble":
        try:
            return Preamble(version("paceline"), config)
        except PackageNotFoundError:  # it runs from its source
            return Preamble("unknown", config)

    def encoded(self) -> bytes:
        """Everything before the first call."""
        content = {"paceline": self.made_by, "settings": self.config.to_dict()}
        settings = record(RecordKind.SETTINGS, to_json(content).encode())
        return MAGIC + FORMAT_NUMBER.pack(FORMAT) + settings

    @staticmethod
    def decoded(payload: bytes) -> "Preamble":
        """From the payload of the first record. ValueError if this version cannot use it."""
        content = loads(payload)
        return Preamble(str(content["paceline"]), Config.of(**content["settings"]))
