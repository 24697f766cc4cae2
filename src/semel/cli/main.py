"""Entry point of the ``semel`` command: assembles the commands, and reports errors.

Exit codes: 0 done; 1 the broker refused, could not be reached, or the input was wrong; 2 the command line was
wrong; 130 interrupted. `semel serve` has five more, which tell a supervisor what to do: 65 the data directory
is damaged, 69 an address is taken, 70 the store or the broker failed, 75 another process owns the data
directory or the node id, 78 the store refuses the broker.

An error that a user can cause is one or two sentences on standard error. A traceback is a bug.
"""

import sys
from typing import Annotated, Any, NoReturn

import typer

from semel.cli import (
    acls,
    check,
    cluster,
    configs,
    console,
    consume,
    groups,
    pipeline,
    produce,
    quotas,
    serve,
    spark,
    storage,
    topics,
    transactions,
    users,
)
from semel.cli.command import keep_client_settings
from semel.cli.options import ClientSettings, CommandConfig
from semel.cli.output import say, say_error
from semel.printable import explained, printable_lines

INTERRUPTED = 130
FAILED = 1

WrongUsage: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""The base of all errors of the command line; Typer exports only some of its subclasses."""

app = typer.Typer(
    name="semel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; for 'semel serve' see its help.",
)
app.command("serve")(serve.serve)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("offsets")(topics.offsets)
app.add_typer(cluster.app, name="cluster")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(quotas.app, name="quotas")
app.add_typer(configs.app, name="configs")
app.command("console")(console.console)
app.command("check")(check.check)
app.command("backup")(storage.backup)
app.command("migrate")(storage.migrate)
app.command("check-storage")(storage.check_storage)
app.command("repair")(storage.repair)
app.command("spark-submit", context_settings=spark.ALL_ARGUMENTS)(spark.spark_submit)


def _version(wanted: bool) -> None:
    if wanted:
        from semel import __version__

        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version)
    ] = False,
    command_config: CommandConfig = None,
    client_settings: ClientSettings = None,
) -> None:
    """A transactional message log that speaks Kafka's protocol.

    Start a broker with 'semel serve'. All other commands work with Semel and with every other Kafka broker:
    choose it with --bootstrap HOST:PORT after the command, or with the environment variable SEMEL_BOOTSTRAP.
    With --json they print data for programs. A broker with TLS or SASL needs settings before the command,
    for example: semel -X security.protocol=SSL -X ssl.ca.location=ca.pem topics list
    """
    keep_client_settings(command_config, client_settings or ())


def run() -> None:
    """Run the command line, and exit with its code."""
    try:
        sys.exit(app(prog_name="semel", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except typer.Abort:
        say("Aborted!")
        sys.exit(FAILED)
    except Exception as error:  # Expected errors are reported in a sentence, others are raised again.
        if isinstance(error, WrongUsage):
            _end_wrong_usage(error)
        if not _is_expected(error):
            raise
        say_error(explained(error))
        sys.exit(FAILED)


def _end_wrong_usage(error: Any) -> NoReturn:
    """Report wrong usage as Typer does, but escape the message: it may quote pasted arguments."""
    error.message = printable_lines(error.message)
    error.show()
    sys.exit(error.exit_code)


def _is_expected(error: Exception) -> bool:
    from semel.client.errors import ClientError, KafkaError, ProtocolError
    from semel.store.contract import StoreBroken, StoreLocked, StoreRefused

    return isinstance(
        error, KafkaError | ClientError | ProtocolError | OSError | StoreBroken | StoreLocked | StoreRefused
    )
