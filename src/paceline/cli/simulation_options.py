"""Options of the commands that simulate, what they check before they run, and what they print."""

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from paceline.cli.command import WrongOption
from paceline.cli.commands.play import setting
from paceline.core.errors import ConfigError
from paceline.core.system.host import processor_name
from paceline.simulator.device.profile import Profile, shipped
from paceline.simulator.device.timed_runner import Drafting
from paceline.simulator.loads import (
    UNCUT,
    Clients,
    LoadSource,
    Phase,
    SyntheticLoad,
    TraceLoad,
    Workload,
)
from paceline.simulator.recorded import RecordedLoad, is_recording
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.workloads.call import FORMS, LengthDistribution

LOAD, SYNTHETIC, SERVER = "load", "synthetic load, without a trace", "server"
OF_TRACES = ("speed", "max_input_len", "max_output_len")
DEFAULT_COUNT = 1000  # conversations of a synthetic load
THINK_S = 10.0
DEFAULT_PROFILE = "h200-qwen3-0.6b"
INPUT, OUTPUT, TURNS = (LengthDistribution("even", one, one) for one in (128, 64, 1))
TargetsOption = Annotated[
    list[str],
    typer.Option(
        metavar="NAME:MS",
        help="Count the requests within a target: ttft:200, tpot:50 or e2e:3000; may be repeated.",
    ),
]
RouterOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How requests are dealt out to replicas: prefix, as `paceline serve "
        "--data-parallel-size` does; load, the same without prefixes; turns, to each in its turn; "
        "sessions, which keeps conversations together.",
        show_default="prefix",
    ),
]
JobsOption = Annotated[
    int, typer.Option(min=0, help="Simulations at a time; 0: as many as there are cores.")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a page with tables and charts to this file."),
]


def lengths(given: str | LengthDistribution) -> LengthDistribution:
    """Parse a distribution; a default is one already."""
    try:
        return given if isinstance(given, LengthDistribution) else LengthDistribution.parse(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def shares(pairs: list[str]) -> dict[str, float]:
    """Parse tenants with their shares, such as alice=3."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, equals, share = pair.partition("=")
        if name in found:
            raise WrongOption(f"--tenants has {name!r} twice")
        try:
            found[name] = float(share) if equals else 1.0
        except ValueError:
            raise WrongOption(f"--tenants {pair!r} is not NAME or NAME=SHARE") from None
        if not name or not 0 < found[name] < inf:
            raise WrongOption(f"--tenants {pair!r} needs a name and a positive, finite share")
    return found


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Who sends the requests.

    Attributes:
        tenants (NAME=SHARE): Deal requests without a tenant out to these; may be repeated.
        leaves_after (S): Seconds after which clients disconnect.
        seed: Seed of the load, and of which drafts are right.
    """

    panel: ClassVar = LOAD

    tenants: list[str] = field(default_factory=list[str])
    leaves_after: float = inf
    seed: Annotated[int, typer.Option(min=0)] = 0

    @property
    def clients(self) -> Clients:
        if not self.leaves_after > 0:
            raise WrongOption("--leaves-after must be positive")
        return Clients(shares(self.tenants), self.leaves_after, self.seed)


@dataclass(frozen=True, slots=True)
class SyntheticOptions:
    """A load that is drawn at random.

    Attributes:
        rate (R|R:S,R:S): Requests per second, or several rates with seconds for each: 2:60,20:10.
        burstiness: 1: Poisson arrivals; below 1: in bursts; above 1: more evenly.
        output_len (LENGTH): Output tokens, likewise.
        prefix_len: Prompt tokens shared with other prompts.
        num_prefixes: Number of different prefixes.
        turns (LENGTH): Turns of a conversation, each of which repeats what was said.
        think (S): Mean seconds from an answer to the next turn.
    """

    panel: ClassVar = SYNTHETIC

    rate: str = "1"
    burstiness: float = 1.0
    input_len: Annotated[
        LengthDistribution,
        typer.Option(
            metavar="LENGTH", parser=lengths, help=f"Prompt tokens: {FORMS}.", show_default="128"
        ),
    ] = INPUT
    output_len: Annotated[LengthDistribution, typer.Option(parser=lengths, show_default="64")] = (
        OUTPUT
    )
    prefix_len: Annotated[int, typer.Option(min=0)] = 0
    num_prefixes: Annotated[int, typer.Option(min=1)] = 1
    turns: Annotated[LengthDistribution, typer.Option(parser=lengths, show_default="1")] = TURNS
    think: Annotated[float, typer.Option(min=0)] = THINK_S

    def load(self, count: int, clients: Clients) -> SyntheticLoad:
        if not 0 < self.burstiness < inf:
            raise WrongOption("--burstiness must be positive and finite")
        if not self.think < inf:
            raise WrongOption("--think must be finite")
        if self.num_prefixes > 1 and not self.prefix_len:
            raise WrongOption("--num-prefixes needs --prefix-len, such as --prefix-len 200")
        if self.think != THINK_S and self.turns == TURNS:
            raise WrongOption("--think is between turns, and there is one; give --turns")
        return SyntheticLoad(
            count,
            Phase.parse(self.rate),
            self.burstiness,
            self.input_len,
            self.output_len,
            self.prefix_len,
            self.num_prefixes,
            self.turns,
            self.think,
            clients,
        )


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """A trace or a recording, or else a synthetic load.

    Attributes:
        trace (TRACE): Azure's CSV, Mooncake's JSON lines, JSON lines with at_s, input_len and
            output_len, or a file that --record wrote. Without it, the load is synthetic.
        num_requests: Requests of the trace, or conversations of a synthetic load.
        speed: Speed-up of the arrivals of a trace.
        max_input_len: Cut longer prompts of a trace.
        max_output_len: Cut longer outputs of a trace.
    """

    panel: ClassVar = LOAD

    trace: Annotated[Path | None, typer.Argument()] = None
    num_requests: Annotated[
        int | None, typer.Option(min=1, show_default=f"all, or {DEFAULT_COUNT}")
    ] = None
    speed: float = 1.0
    max_input_len: Annotated[int, typer.Option(min=1)] = UNCUT
    max_output_len: Annotated[int, typer.Option(min=1)] = UNCUT
    clients: ClientOptions = field(default_factory=ClientOptions)
    synthetic: SyntheticOptions = field(default_factory=SyntheticOptions)

    @property
    def source(self) -> LoadSource:
        clients = self.clients.clients
        if not 0 < self.speed < inf:
            raise WrongOption("--speed must be positive and finite")
        self._check_kind()
        if self.trace is None:
            return self.synthetic.load(self.num_requests or DEFAULT_COUNT, clients)
        part = self.num_requests, self.speed, self.max_input_len, self.max_output_len
        if is_recording(self.trace):
            return RecordedLoad(self.trace, clients, *part)
        return TraceLoad(self.trace, *part, clients)

    def _check_kind(self) -> None:
        """Refuse options that would have no effect: those of the other kind of load."""
        if self.trace is None:
            given, plain, names = self, LoadOptions(), OF_TRACES
            problem = "changes a trace, and none is given"
        else:
            given, plain = self.synthetic, SyntheticOptions()
            names = [one.name for one in fields(plain)]
            problem = f"is for synthetic loads, and the load is {self.trace}"
        for name in names:
            if getattr(given, name) != getattr(plain, name):
                raise WrongOption(f"--{name.replace('_', '-')} {problem}")

    @property
    def name(self) -> str:
        return "a synthetic load" if self.trace is None else self.trace.name


@dataclass(frozen=True, slots=True)
class ServerModelOptions:
    """The device, the model and the settings of the simulated server.

    Attributes:
        ttft_target_ms (MS): Target of the time to the first token; goodput counts the requests that
            meet it, and the policy is slo unless another one is named.
        itl_target_ms (MS): Target of the time between two tokens, which a hundredth of the gaps of
            a request may exceed.
        settings (NAME=VALUE): A setting of the scheduler, such as max_num_seqs=64; may be repeated.
        depth: Steps in flight; 0: by the profile.
        timeout (S): Seconds after which requests end; 0: no limit.
        acceptance: Chance that a draft is right if those before it are; with --set
            num_speculative_tokens=3.
        draft_ms (MS): Milliseconds of the device for the next draft of all rows, such as a step of
            a draft model.
    """

    panel: ClassVar = SERVER

    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Step times: a file of `paceline calibrate`, or one of {', '.join(shipped())}.",
        ),
    ] = DEFAULT_PROFILE
    settings: Annotated[list[Any], typer.Option("--set", parser=setting)] = field(
        default_factory=list[Any]
    )
    ttft_target_ms: Annotated[float, typer.Option(min=0)] = 0.0
    itl_target_ms: Annotated[float, typer.Option(min=0)] = 0.0
    depth: Annotated[int, typer.Option(min=0, max=16)] = 0
    timeout: Annotated[float, typer.Option(min=0)] = 0.0
    acceptance: Annotated[float | None, typer.Option(min=0, max=1, show_default=False)] = None
    draft_ms: Annotated[float, typer.Option(min=0)] = 0.0

    def model(
        self, source: LoadSource, seed: int, more: Mapping[str, Any] | None = None
    ) -> ServerModel:
        """A recording brings its own settings; those of the command line replace them."""
        settings: dict[str, Any] = {}
        if isinstance(source, RecordedLoad):
            settings |= source.settings
        settings |= {**self.targets_ms, **dict(self.settings), **(more or {})}
        model = ServerModel(
            Profile.load(self.profile),
            settings,
            self.depth,
            self.timeout,
            drafting=self._drafting(seed),
        )
        SimulatedServer(model, [])  # wrong settings are reported before anything runs
        return model

    @property
    def targets_ms(self) -> dict[str, float]:
        """Targets of service levels that are given, as settings."""
        given = {"ttft_target_ms": self.ttft_target_ms, "itl_target_ms": self.itl_target_ms}
        return {name: target for name, target in given.items() if target}

    def _drafting(self, seed: int) -> Drafting | None:
        if self.acceptance is not None:
            return Drafting(self.acceptance, self.draft_ms / 1e3, seed)
        if self.draft_ms:
            raise WrongOption("--draft-ms needs --acceptance, such as --acceptance 0.7")
        return None


def check_drafts(*models: ServerModel) -> None:
    """Refuse an acceptance that would have no effect: no model has drafts."""
    drafts = [one.config.speculation.num_speculative_tokens for one in models]
    if models[0].drafting is not None and not any(drafts):
        raise WrongOption("--acceptance needs drafts, such as --set num_speculative_tokens=3")


def check_explained(names: Iterable[str], load: Workload, title: str) -> None:
    """ConfigError for a request that is not in the load, before anything runs."""
    known = {one.id for one in load.requests}
    for name in names:
        if name not in known:
            some = ", ".join(one.id for one in islice(load.requests, 5))
            raise ConfigError(f"there is no request {name!r} in {title}, which has {some}, ...")


def about(model: ServerModel, load: str, source: LoadSource) -> list[str]:
    """What is simulated, in sentences."""
    profile = model.profile
    lines = [f"{load} on {profile.device or 'a device'} with {profile.model or 'a model'}."]
    if isinstance(source, RecordedLoad) and source.ending:
        lines.append(f"The recording is not complete: {source.ending}.")
    if model.drafting is not None:
        lines.append(f"Each draft is right with a chance of {model.drafting.acceptance:g}.")
    return lines + doubts(model)


def doubts(model: ServerModel) -> list[str]:
    """Why results for this machine may be far off."""
    return model.profile.doubts(processor_name(), platform.machine())


def print_record(record: Mapping[str, Any]) -> None:
    """JSON alone on the standard output, and its warnings on the other one."""
    print(json.dumps(record))
    for line in record["warnings"]:
        print(line, file=sys.stderr)
