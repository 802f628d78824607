"""The command line of `aep-setup`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from deploy.setup import change, context
from deploy.setup.context import Context
from deploy.setup.doctor import doctor
from deploy.setup.errors import SetupError
from deploy.setup.status import status

DESCRIPTION = """\
Registers the hooks of aep-kimi in Kimi Code's config file, takes them out again, and says what is wrong.

Kimi Code has one config file, $KIMI_CODE_HOME/config.toml (default ~/.kimi-code/config.toml). One entry
there that it does not accept disables every hook of yours without a word, so aep-setup checks the whole
section before it writes, and refuses, file untouched, where it cannot be right."""

EPILOG = """\
commands:
  write    put a fenced block of [[hooks]] tables at the end of the file, or bring it up to date in place
  remove   take it out: the file is then as if aep-setup had never been there
  status   what is registered, for which address and events, current or stale
  doctor   check everything from the program to the service, change nothing

examples:
  aep-setup write kimi-code
  aep-setup write kimi-code --url https://aep.example.org --token-file ~/.config/aep/token
  aep-setup write kimi-code --dry-run
  aep-setup doctor kimi-code

exit codes: 0 done or nothing wrong, 1 refused or something wrong, 2 wrong use of this command line.
`aep-setup COMMAND --help` tells more of each command."""

WRITE = """\
Appends a block of [[hooks]] tables between two marker comments to the config file, one table for each event
that the installed Kimi Code accepts (16, from 0.33 on 20; 16 where its version is not known). Run again it
brings the block up to date where it stands; no other byte of the file ever changes. Options that are not
given keep what is registered. The old file stays beside it as config.toml.aep-backup-TIME (the newest five
are kept; they hold your API keys as the config does, and have its mode and owner).

Open sessions go on without the hooks until they are restarted, or /reload is typed in them."""

REMOVE = """\
Takes the hooks of aep-setup out, fenced or not. Every other byte stays. A file that `write` has made, and
that holds nothing else, is deleted. The old file stays beside it as config.toml.aep-backup-TIME."""

STATUS = """\
Tells what is registered: absent, current, stale (and why), bare (the entries are there, the fence is not),
broken (half a fence, entries outside the fence), or unreadable. Options describe what should be registered;
what they leave open is taken as registered. Exit code 0 whatever the state; 1 if it cannot be told."""

DOCTOR = """\
Checks, one line each and with a remedy where something is wrong: Kimi Code, its version and engine, whether
it is really the vendor's; the home, and other homes; the file, its hooks section, the fence; the registered
command, which is run against a listener of doctor's own; the service on each of its addresses, the token;
the last event of each type from this machine; programs that run since before the hooks were written.
Changes nothing. Exit code 1 if anything is wrong."""

Command = Callable[[Context], int]


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run `aep-setup`; returns its exit code: 0, 1 for a refusal or a finding, 2 for wrong use."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(argv)
    run: Command = options.run
    try:
        return run(context.make(options, os.environ if env is None else env))
    except SetupError as error:
        print(f"aep-setup: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("aep-setup: interrupted, the config file is whole; run again", file=sys.stderr)
    except BrokenPipeError:
        # the reader of our output has left, and Python would complain about it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "aep-setup", description=DESCRIPTION, epilog=EPILOG, formatter_class=form
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    write = commands.add_parser("write", help="register the hooks", description=WRITE, formatter_class=form)
    _wanted(write)
    write.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")
    write.add_argument(
        "--refence",
        action="store_true",
        help="take out what is ours wherever it stands and append one fresh block at the end: for a file "
        "whose comments Kimi Code has stripped, or with settings below the block",
    )
    write.add_argument(
        "--fix",
        action="store_true",
        help="take out an empty `hooks = []`, which other tools leave and which forbids any hook below it; "
        "the difference is shown",
    )
    write.add_argument(
        "--beside", action="store_true", help="register although another observer sees every event already"
    )
    write.set_defaults(run=change.write)

    remove = commands.add_parser("remove", help="take them out", description=REMOVE, formatter_class=form)
    _common(remove)
    remove.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")
    remove.set_defaults(run=change.remove, ask=False)

    shown = commands.add_parser("status", help="what is registered", description=STATUS, formatter_class=form)
    _wanted(shown)
    shown.add_argument("--json", action="store_true", help="as one JSON object")
    shown.set_defaults(run=status)

    checked = commands.add_parser("doctor", help="what is wrong", description=DOCTOR, formatter_class=form)
    _wanted(checked)
    checked.set_defaults(run=doctor)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agent", choices=["kimi-code"], metavar="kimi-code", help="the agent, always kimi-code"
    )
    parser.add_argument(
        "--home", metavar="DIR", help="Kimi Code's home (default $KIMI_CODE_HOME, else ~/.kimi-code)"
    )
    parser.add_argument(
        "--kimi", metavar="FILE", help="Kimi Code's program (default: the first `kimi` on PATH)"
    )
    parser.add_argument(
        "--vendor-version",
        metavar="VERSION",
        default="",
        help="write for this version of Kimi Code, like 2.1.0, instead of asking it",
    )


def _wanted(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    parser.set_defaults(ask=True)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where the service listens, its base or its /hook address (default $AEP_URL, else what is "
        "registered, else http://127.0.0.1:8398)",
    )
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="FILE", help="file with the service's bearer token, one line")
    token.add_argument(
        "--no-token-file", dest="token_file", action="store_const", const="", help="register no token file"
    )
    control = parser.add_mutually_exclusive_group()
    control.add_argument(
        "--control",
        action="store_true",
        default=None,
        help="let the service hold tool calls: PreToolUse may take 60 s (needs AEP_KIMI_CONTROL=1 there)",
    )
    control.add_argument(
        "--no-control", dest="control", action="store_false", default=None, help="hold no tool calls"
    )


if __name__ == "__main__":
    sys.exit(main())
