"""`paceline calibrate`: measure the steps of a model on this machine, for simulations."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.bench.options import writable
from paceline.cli.main import INTERRUPTED
from paceline.cli.options import EngineOptions, ModelArgument


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The model, and how long to measure."""

    argument: ModelArgument = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the profile here instead of printing it."
        ),
    ] = None
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the profile.", show_default="device-model")
    ] = ""
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Seconds to measure for, without loading the model.")
    ] = 180.0
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: CalibrateOptions) -> int:
    """Measure the steps of a model on this machine, for simulations."""
    from paceline.hub.loading_status import LoadingStatus
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
        return 0
    options.output.write_text(text, encoding="utf-8")
    errors = ", ".join(f"{name} {100 * value:.1f} %" for name, value in profile.error.items())
    print(f"{options.output}: errors on steps that the fit did not see: {errors}")
    return 0
