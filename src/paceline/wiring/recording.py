"""A scheduler that is recorded if the settings say so."""

import logging

from paceline.core.config import Config, RecordConfig
from paceline.sched.replay.recorded_scheduler import RecordedScheduler
from paceline.sched.replay.records import RecordingError
from paceline.sched.scheduler import Scheduler

log = logging.getLogger(__name__)


def scheduler_of(config: Config, record: RecordConfig) -> Scheduler:
    """A recording that cannot be begun is an error in the log, and does not stop the engine."""
    if not record.record:
        return Scheduler(config)
    try:
        scheduler = RecordedScheduler(config, record)
    except (OSError, RecordingError) as error:
        log.error("cannot record to %s: %s; the engine runs unrecorded", record.record, error)
        return Scheduler(config)
    log.info("recording to %s", scheduler.recording.path)
    return scheduler
