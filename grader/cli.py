"""`ol`: a table of verbs. Each verb is a thin wrapper; the work is in the module it names."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import __version__, console, launch
from grader.errors import INTERRUPTED, NOT_PASSED, OWN_FAULT, PASSED, USAGE, OlError

if TYPE_CHECKING:
    import socket

    from grader.session import Zygote

    Worker = tuple[int, socket.socket]

_zygote: Zygote | None = None


def main(argv: list[str] | None = None, started: Worker | None = None) -> int:
    """Run a command and return its exit code; every expected failure is one line on stderr."""
    console.standard_streams()
    try:
        return run(sys.argv[1:] if argv is None else argv, started)
    except KeyboardInterrupt:  # at any moment, start and end included
        console.note("interrupted")
        return INTERRUPTED


def run(args: list[str], started: Worker | None) -> int:
    global _zygote
    if started is not None:
        from grader.session import Zygote

        _zygote = Zygote(started)
        gc.set_threshold(100_000)  # a short run that builds many small values: collecting them takes a tenth
    import click

    try:
        code = verbs().main(args, "ol", standalone_mode=False)
        sys.stdout.flush()  # here a full disk or a closed pipe is still ours to report
        return code if isinstance(code, int) else PASSED
    except OlError as error:
        console.note(console.typed(str(error)))
        return error.exit_code
    except click.exceptions.UsageError as error:
        where = error.ctx.command_path if error.ctx else "ol"
        what = error.format_message().rstrip(".").replace(". Did you mean", ", did you mean")
        console.note(console.typed(f"error: {what[:1].lower()}{what[1:]} · {where} · see {where} --help"))
        return USAGE
    except click.exceptions.Abort as error:  # click's form of Ctrl-C, and of EOFError
        if isinstance(error.__cause__, EOFError):
            cache = Path(__file__).resolve().parent / "__pycache__"
            console.note(
                f"error: a compiled file is cut short, as on a full disk · {cache} · delete that folder"
            )
            return OWN_FAULT
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # the reader of our output has gone, as with `ol learn | head`
        drop_stdout()
        return NOT_PASSED if args[:1] and args[0] in launch.WARM else PASSED  # nobody has read the verdict
    except OSError as error:
        drop_stdout()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else error.strerror or str(error)
        place = error.filename or "standard output, or a file of this machine"
        console.note(f"error: {what} · {place} · this is no verdict on the code: mend it and run again")
        return OWN_FAULT
    finally:
        if _zygote is not None:
            _zygote.close()
            _zygote = None


def drop_stdout() -> None:
    """What could not be written must not be tried again when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def verbs() -> Any:
    """The click group; built on demand so that importing this module stays cheap."""
    import click

    def ids(ctx: Any, param: Any, incomplete: str) -> list[str]:
        """Completion: ids and units of the path."""
        from grader.path import read_path
        from grader.workspace import course_root

        del ctx, param
        stages = read_path(course_root() / "path.tsv")
        return [n for s in stages for n in (s.id, s.unit) if n.lower().startswith(incomplete.lower())]

    json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    tree_option = click.option("--impl", metavar="DIR", help="Grade the impl/ in DIR instead.")

    @click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(message="%(version)s", version=__version__)
    @json_option
    @click.pass_context
    def ol(ctx: Any, as_json: bool) -> int | None:
        """Grade an LLM inference stack that you are learning to write."""
        if ctx.invoked_subcommand is None:
            from grader import learn

            return learn.where_am_i(as_json)
        return None

    @ol.command()
    @click.argument("path", required=False)
    @json_option
    def learn(path: str | None, as_json: bool) -> int:
        """The path, your progress, the gates."""
        from grader import learn as verb

        return verb.learn(path, as_json)

    @ol.command()
    @click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=ids)
    @click.option("--all", "everything", is_flag=True, help="Every unit that is built.")
    @click.option("--case", "cases", multiple=True, metavar="CASE", help="Only this case (may be repeated).")
    @click.option("--seed", type=click.IntRange(0), help="Another seed for properties.")
    @click.option("--ref-deps", is_flag=True, help="Needed units that do not pass come from the reference.")
    @click.option("--fresh", is_flag=True, help="Grade again even if nothing changed.")
    @click.option("--twice", is_flag=True, help="Run twice in shuffled order; always so where CI is set.")
    @click.option("--adapter", metavar="CMD", help="Grade a program that speaks the line protocol.")
    @click.option("-v", "--verbose", is_flag=True, help="Show every failing case in full.")
    @tree_option
    @json_option
    def check(**options: Any) -> int:
        """Grade units; without ids, the next one that is not passed yet."""
        from grader import commands

        return commands.check(_zygote, **options)

    @ol.command()
    @click.argument("name", metavar="ID")
    @click.option("--fresh", is_flag=True, help="Grade again even if nothing changed.")
    @click.option("--real", is_flag=True, help="Also the steps on the real model, which is installed apart.")
    @tree_option
    @json_option
    def gate(**options: Any) -> int:
        """Whether a milestone is passed: MS-L8, MS-P6, MS-L9."""
        from grader import commands

        return commands.gate(_zygote, **options)

    @ol.command()
    @click.argument("name", metavar="ID", shell_complete=ids)
    @json_option
    def hint(name: str, as_json: bool) -> int:
        """The next hint for what failed last; an attempt earns one more."""
        from grader import hints

        return hints.hint(name, as_json)

    @ol.command()
    @click.argument("name", metavar="ID", shell_complete=ids)
    @click.argument("rule", required=False)
    @json_option
    def spec(name: str, rule: str | None, as_json: bool) -> int:
        """Read the law of a unit, or one rule of it."""
        from grader import hints

        return hints.law(name, rule, as_json)

    @ol.command()
    @click.argument("name", metavar="CASE")
    @tree_option
    def reproduce(name: str, impl: str | None) -> int:
        """Print a C case as a program, for a debugger."""
        from grader import reproduce as verb

        return verb.reproduce(name, impl)

    @ol.command()
    @click.argument("folder", metavar="DIR")
    @json_option
    def init(folder: str, as_json: bool) -> int:
        """Make a workspace of stubs to fill in."""
        from grader import init as verb

        return verb.init(folder, as_json)

    @ol.command()
    @click.argument("name", metavar="ID", shell_complete=ids)
    @json_option
    def restore(name: str, as_json: bool) -> int:
        """Put a unit's stub back; your file is kept beside it."""
        from grader import init as verb

        return verb.restore(name, as_json)

    @ol.command()
    @click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=ids)
    @click.option("--rounds", type=click.IntRange(7, 200), default=15, show_default=True, help="Of A B B A.")
    @tree_option
    @json_option
    def bench(names: tuple[str, ...], rounds: int, impl: str | None, as_json: bool) -> int:
        """Time units beside their baselines, as ratios."""
        from grader import bench as verb

        return verb.bench(names, rounds, impl, as_json)

    @ol.command(context_settings={"ignore_unknown_options": True})
    @click.argument("pytest_args", nargs=-1, type=click.UNPROCESSED)
    def selftest(pytest_args: tuple[str, ...]) -> int:
        """Run the project's own tests; further arguments go to pytest."""
        from grader import commands

        return commands.selftest(pytest_args)

    @ol.group()
    def author() -> None:
        """For course authors: lint, build, mutants, coverage, new."""

    def author_verb(name: str, doc: str) -> None:
        @author.command(name, help=doc)
        @click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=ids)
        @json_option
        def run(names: tuple[str, ...], as_json: bool) -> int:
            from grader import author as verb

            return verb.run(name, names, as_json)

    author_verb("lint", "Check the path, the spec pages, the fixtures and the mutants.")
    author_verb("mutants", "Prove the cases' teeth: mutants, equivalents, trivial answers.")
    author_verb("coverage", "Rules without cases, cases without rules, field cases.")

    @author.command()
    @click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=ids)
    @click.option(
        "--check", "only_check", is_flag=True, help="Change nothing; exit 1 if a file would change."
    )
    @json_option
    def build(names: tuple[str, ...], only_check: bool, as_json: bool) -> int:
        """Recompute expected values with the oracle and write them into the fixtures."""
        from grader import author as verb

        return verb.build(names, only_check, as_json)

    @author.command()
    @click.argument("unit", metavar="UNIT")
    def new(unit: str) -> int:
        """Print the skeletons of a new unit."""
        from grader import author as verb

        return verb.new(unit)

    return ol
