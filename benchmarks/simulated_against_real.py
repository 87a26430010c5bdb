"""A real engine under a load beside its simulation: how far off is the simulation, and why?

    python -m benchmarks.simulated_against_real smollm2 --profile cpu.json --output FOLDER
    python -m benchmarks.simulated_against_real qwen3-0.6b --calibrate 60 --profile new.json
    python -m benchmarks.simulated_against_real --saved FOLDER --profile other.json

The model is a name or a path as `serve` takes it, or a shape, which gets random weights.
The loads are shares of the capacity that the simulation finds; requests come at random times with
lengths drawn from a seed, or from a trace, and every one generates all of its tokens. The engine
runs as under `paceline serve`, in a process of its own, and its clients are in this process; with
`--core thread` it runs as `AsyncLLM` does, beside them. FOLDER gets `run.npz` with what was
observed, `check.json` and `check.md` with the comparison. With `--calibrate`, the profile is
measured first, and written to its file. With `--saved`, the simulation alone is made again.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from benchmarks.open_loop import RealRun, flat, send
from benchmarks.simulation_errors import Check, checked, tables
from benchmarks.watched_steps import FACTORY, STEP_LOG, StepLog
from paceline.core.settings.load import LoadConfig
from paceline.core.system.host import keep_heap
from paceline.engine.components import factory_named
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.thread import ThreadCore
from paceline.simulator.device.profile import Profile
from paceline.simulator.loads import Clients, Phase, SyntheticLoad, TraceLoad, Workload
from paceline.simulator.recorded import UNUSED
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.text.chat_template import ChatTemplate
from paceline.wiring.calibration import measured_profile
from paceline.wiring.model_files import download, load_tokenizer, sampling_rules
from paceline.workloads.call import LengthDistribution

SHARES = {"light": 0.4, "near": 0.9, "overload": 1.3}  # of the capacity
BACKLOG = 6  # requests for each that can run, to find the capacity
MIDDLE = 0.25, 0.75  # of the requests: the rate at which these end is the capacity
WARM_S = 4.0  # of the last load, before the first one
SHAPES = files("paceline.runner.models") / "shapes"
BLOCKS = "num_gpu_blocks_override"

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What requests are like, at any rate."""

    input_len: LengthDistribution
    output_len: LengthDistribution
    prefix_len: int
    prefixes: int
    most: int  # tokens of a request
    trace: Path | None
    seed: int

    def requests(self, count: int, rate: float, seed: int) -> Workload:
        """So many of them; each seed has prompts of its own."""
        clients = Clients(seed=self.seed + seed)
        if self.trace is not None:
            load = TraceLoad(self.trace, count, clients=clients).workload().at_rate(rate)
        else:
            load = SyntheticLoad(
                count,
                (Phase(rate),),
                input_len=self.input_len,
                output_len=self.output_len,
                prefix_len=self.prefix_len,
                prefixes=self.prefixes,
                clients=clients,
            ).workload()
        return Workload([self._own(one, seed) for one in load.requests])

    def _own(self, one: Any, seed: int) -> Any:
        """Cut to the length of the model, under keys that no other load has."""
        room, kept = self.most - 1, list[Any]()
        for part in one.content:
            kept.append(replace(part, key=f"{seed}/{part.key}", tokens=min(part.tokens, room)))
            room -= kept[-1].tokens
        kept = [part for part in kept if part.tokens > 0]
        used = sum(part.tokens for part in kept)
        return replace(
            one, content=tuple(kept), output_len=max(min(one.output_len, self.most - used), 1)
        )


def capacity(model: ServerModel, shape: LoadShape) -> float:
    """Requests per second that end while there are always more than can run."""
    count = BACKLOG * model.config.step.max_num_seqs
    load = shape.requests(count, 1e6, seed=1000)
    ends = np.sort(SimulatedServer(model, load.requests).run().log.ended)
    first, last = (int(share * (count - 1)) for share in MIDDLE)
    return (last - first) / float(ends[last] - ends[first])


# -- the real engine ------------------------------------------------------------


def found_model(model: str, settings: Mapping[str, Any], folder: Path) -> tuple[str, Settings]:
    """The path of a model, and its settings. The configuration of a shape goes into the folder."""
    given: Settings = dict(settings)
    if f"{model}.json" in {shape.name for shape in SHAPES.iterdir()}:
        path = folder / model
        path.mkdir()
        shape = (SHAPES / f"{model}.json").read_text()
        config = json.loads(shape) | {"torch_dtype": "bfloat16"}
        (path / "config.json").write_text(json.dumps(config))
        return str(path), {"load_format": "dummy"} | given
    return model if given.get("load_format") == "dummy" else str(download(model)), given


def calibrated(name: str, path: str, settings: Settings, seconds: float) -> Profile:
    """A new profile, measured in a process of its own, which leaves the device free. It has all
    memory for KV, so that steps of all sizes fit."""
    settings = {key: value for key, value in settings.items() if key != BLOCKS}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured_profile, path, name, seconds, **settings).result()


def real_engine(path: str, core: str, given: Settings) -> StreamingEngine:
    """As `paceline serve` builds it; only its steps are logged."""
    if core == "thread":
        components = factory_named(FACTORY)(path, **given)
        engine = components.engine()
        return StreamingEngine(ThreadCore(engine), components.frontend(engine))
    tokenizer = load_tokenizer(path, given.get("load_format", "auto"))
    rules = sampling_rules(tokenizer, LoadConfig())
    frontend = Frontend(tokenizer, ChatTemplate.of(tokenizer), monotonic, rules)
    return StreamingEngine(ProcessCore(FACTORY, path, given), frontend)


async def run_all(
    options: argparse.Namespace, profile: Profile, engine: StreamingEngine, about: Path
) -> list[RealRun]:
    """All loads on one engine, after a short one that warms it up."""
    async with engine:
        model = server_model(profile, json.loads(about.read_text()))
        shape = shape_of(options, model.config.step.max_model_len)
        most = capacity(model, shape)
        say(capacity_per_s=most)
        keep_heap()
        shares = dict(options.loads)
        warm = max(shares.values()) * most
        await send(engine, "", 0.0, shape.requests(int(warm * WARM_S) + 1, warm, 999).requests)
        runs: list[RealRun] = []
        for seed, (name, share) in enumerate(shares.items()):
            await engine.reset_prefix_cache()
            rate = share * most
            load = shape.requests(int(rate * options.seconds) + 1, rate, seed)
            begin = perf_counter()
            runs.append(await send(engine, name, share, load.requests))
            took = perf_counter() - begin
            say(load=name, rate=rate, requests=len(load.requests), seconds=took)
    return runs


def server_model(profile: Profile, about: Mapping[str, Any]) -> ServerModel:
    """What is simulated: the profile, with the settings of the real engine."""
    settings = {name: value for name, value in about["settings"].items() if name not in UNUSED}
    return ServerModel(profile, settings, about["depth"], http=False)


def shape_of(options: argparse.Namespace, max_model_len: int) -> LoadShape:
    return LoadShape(
        options.input_len,
        options.output_len,
        options.prefix_len,
        options.num_prefixes,
        max_model_len,
        options.trace,
        options.seed,
    )


def real(options: argparse.Namespace) -> None:
    """Run the real engine, and save what was observed."""
    with TemporaryDirectory() as temporary:
        steps = Path(temporary) / "steps.npz"
        about = steps.with_suffix(".json")
        os.environ[STEP_LOG] = str(steps)
        path, settings = found_model(options.model, options.settings, steps.parent)
        if options.calibrate:
            name = Path(options.profile).stem
            measured = calibrated(name, path, settings, options.calibrate)
            Path(options.profile).write_text(measured.to_json())
            say(errors=measured.error)
        profile = Profile.load(options.profile)
        engine = real_engine(path, options.core, settings)
        runs = asyncio.run(run_all(options, profile, engine, about))
        with np.load(steps) as found:
            arrays = {f"steps.{name}": found[name] for name in found.files}
        arrays |= {"about": np.array(about.read_text()), "core": np.array(options.core)}
    np.savez_compressed(options.output / "run.npz", **arrays, **dict(flat(runs)))


def compared(folder: Path, profile: Profile) -> list[Check]:
    """Simulate what was saved, and compare."""
    with np.load(folder / "run.npz") as saved:
        named = {name: saved[name] for name in saved.files}
    model = server_model(profile, json.loads(str(named["about"])))
    log = StepLog.of(part(named, "steps"))
    numbers = sorted({name.partition(".")[0] for name in named} - {"steps", "about", "core"})
    return [checked(RealRun.of(part(named, number)), log, model) for number in numbers]


def part(named: Mapping[str, Any], name: str) -> dict[str, Any]:
    start = f"{name}."
    return {key[len(start) :]: one for key, one in named.items() if key.startswith(start)}


# -- the command line -----------------------------------------------------------


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def loads(text: str) -> list[tuple[str, float]]:
    """Parse names with shares of the capacity: light, or light=0.5."""
    found: list[tuple[str, float]] = []
    for word in text.split(","):
        name, _, share = word.partition("=")
        found.append((name, float(share) if share else SHARES[name]))
    return found


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    lengths = LengthDistribution.parse
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--profile", required=True, help="a file, or a name of the package")
    parser.add_argument("--calibrate", type=float, metavar="S", help="measure the profile first")
    parser.add_argument("--real-only", action="store_true", help="simulate later, with --saved")
    parser.add_argument("--output", type=Path, default=Path("simulation-check"), metavar="FOLDER")
    parser.add_argument("--saved", type=Path, metavar="FOLDER", help="compare again, run nothing")
    parser.add_argument("--loads", type=loads, default=loads("light,near,overload"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals of a load")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the engine, as JSON")
    parser.add_argument("--core", choices=("process", "thread"), default="process")
    parser.add_argument("--trace", type=Path, help="lengths and times come from this file")
    parser.add_argument("--input-len", type=lengths, default=lengths("lognormal:400:0.7"))
    parser.add_argument("--output-len", type=lengths, default=lengths("lognormal:150:0.6"))
    parser.add_argument("--prefix-len", type=int, default=128, help="shared tokens of prompts")
    parser.add_argument("--num-prefixes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    if options.saved is None:
        options.output.mkdir(parents=True, exist_ok=True)
        real(options)
        if options.real_only:
            return
    folder = options.saved or options.output
    checks = compared(folder, Profile.load(options.profile))
    (folder / "check.json").write_text(json.dumps([one.to_dict() for one in checks], indent=1))
    text = tables(checks)
    (folder / "check.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
