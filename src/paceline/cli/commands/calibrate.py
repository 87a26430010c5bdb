"""`paceline calibrate`: measure the steps of a model on this machine, for simulations."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.bench.options import writable
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import EngineOptions, ModelArgument
from paceline.simulator.device.profile import MOST_ERROR

FEWEST_S = 30.0  # in which there is time for host, front end, and some steps of each kind


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The model, and how long to measure.

    Attributes:
        output (FILE): Write the profile here instead of printing it.
        name (NAME): Name of the profile.
        seconds: Seconds to measure for, without loading the model. With few of them, few kinds of
            steps are timed.
        max_error (PERCENT): If steps that the fit did not see are further off on average, the exit
            status is 1.
    """

    argument: ModelArgument = None
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None
    name: Annotated[str, typer.Option(show_default="device-model")] = ""
    seconds: Annotated[float, typer.Option(min=FEWEST_S)] = 180.0
    max_error: Annotated[float, typer.Option(min=0.0)] = 100 * MOST_ERROR
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: CalibrateOptions) -> int:
    """Measure the steps of a model on this machine, for simulations.

    Other programs should not run meanwhile. Steps during which they did are measured again, if
    there is time. The exit status is 1 if the profile is too far off on steps that were held back;
    the profile is written all the same, and simulations with it repeat the warning.
    """
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.wiring.calibration import measured_profile

    writable(options.output)
    model = options.engine.name(options.argument)
    settings = dict(options.engine.settings)
    try:
        with LoadingStatus(model) as bar:
            profile = measured_profile(model, options.name, options.seconds, bar, **settings)
    except KeyboardInterrupt:
        print("interrupted: a smaller --seconds takes less time", file=sys.stderr)
        return INTERRUPTED
    text = profile.to_json()
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
        errors = ", ".join(f"{name} {100 * value:.1f} %" for name, value in profile.error.items())
        print(f"{options.output}: errors on steps that the fit did not see: {errors}")
    above = profile.errors_above(options.max_error / 100)
    if above:
        print(f"WARNING: {complaint(above, profile.notes)}", file=sys.stderr)
    return int(bool(above))


def complaint(above: str, notes: str) -> str:
    """What is wrong with a profile, and what helps."""
    return (
        f"the profile is {above} off on steps that the fit did not see, so simulations with it may "
        f"be as far off. {notes} Measure again on a machine that does nothing else, with more "
        "--seconds if steps were left out; --max-error accepts more."
    )
