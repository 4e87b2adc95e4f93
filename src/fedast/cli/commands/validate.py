"""``fedast validate``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import config_argument, set_option


@click.command()
@config_argument()
@set_option()
@click.option("--resolved", is_flag=True, help="Print the configuration with all defaults.")
@reports_errors
def validate(config: str, settings: tuple[str, ...], resolved: bool) -> None:
    """Check CONFIG without running it."""
    from fedast.cli.loading import load_noted, warn
    from fedast.records import toml
    from fedast.run.build import check_inputs

    checked, found = load_noted(config, settings)
    check_inputs(checked)
    warn(found, checked)
    if resolved:
        click.echo(toml.dumps(checked.model_dump(mode="json", exclude={"algorithms"})), nl=False)
        return
    names = ", ".join(task.name or task.use for task in checked.tasks)
    click.echo(
        f"{config}: valid: {checked.algorithm.name}, {checked.simulation.clients} clients, "
        f"{len(checked.tasks)} tasks ({names})"
    )
