"""The files that the settings name for a recording and for a timeline."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.core.settings.features import RecordConfig
from paceline.engine.trace import trace_file
from paceline.sched.replay.recorded_scheduler import RECORD_SETTINGS, RecordedScheduler
from paceline.sched.replay.recording import check_writable
from paceline.sched.replay.records import RecordingError
from paceline.sched.scheduler import Scheduler

log = logging.getLogger(__name__)


def begin_files(settings: Mapping[str, Any]) -> None:
    """Begin the timeline that the settings name, and keep that of an earlier run. ConfigError if it
    or the recording cannot be written.

    It is called once, before a model is loaded. A core that is restarted later runs unrecorded
    rather than not at all if its file cannot be written any more, and continues the timeline.
    """
    given = {name: settings[name] for name in RECORD_SETTINGS if name in settings}
    config = RecordConfig(**given)
    if config.record:
        try:
            check_writable(Path(config.record))
        except RecordingError as error:
            raise ConfigError(f"record: {error}") from None
    if config.trace:
        begin_trace(Path(config.trace))


def begin_trace(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ConfigError(f"trace: {path} is not a plain file; choose another name")
    try:
        trace_file.keep_earlier(path)
        trace_file.begin(path)
    except OSError as error:
        raise ConfigError(f"trace: cannot write to {path}: {error.strerror}") from None


def scheduler_of(config: Config, record: RecordConfig) -> Scheduler:
    """A scheduler. If its recording cannot be begun, a warning says so and it runs unrecorded."""
    if not record.record:
        return Scheduler(config)
    try:
        scheduler = RecordedScheduler(config, record)
    except (OSError, RecordingError) as error:
        log.warning("cannot record to %s: %s; the engine runs unrecorded", record.record, error)
        return Scheduler(config)
    log.info("recording to %s", scheduler.recording.path)
    return scheduler
