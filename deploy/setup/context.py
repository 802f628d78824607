"""What one run of `aep-setup` is about: which home, which Kimi Code, which hooks it wants there."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.setup import blocks, edit, vendor
from deploy.setup.blocks import Registration
from deploy.setup.edit import Config
from deploy.setup.errors import SetupError
from deploy.setup.vendor import Vendor

_SYSTEM_PATH = "/usr/bin:/bin"
SHIM = Path(__file__).resolve().parents[1] / "shim" / blocks.SHIM_NAME


@dataclass(frozen=True, slots=True)
class Context:
    """The command line, the environment, the home and the Kimi Code that was found."""

    options: argparse.Namespace
    env: Mapping[str, str]
    home: Path
    vendor: Vendor

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @property
    def version(self) -> str:
        """The version to write for: `--vendor-version`, else what `kimi` says, empty if unknown."""
        return self.options.vendor_version or self.vendor.version

    @property
    def engine(self) -> str:
        return vendor.engine(self.version, self.env)

    @property
    def events(self) -> tuple[str, ...]:
        """The events to register."""
        return vendor.events(self.version, self.env)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The events that anybody may register; all known ones where the version is not known."""
        return self.events if self.version else blocks.EVENTS_20

    def wanted(self, config: Config | None) -> Registration:
        """The hooks to register: what the options say, else what is registered already."""
        if not os.access(SHIM, os.R_OK):
            raise SetupError(f"the shim {SHIM} cannot be read; install aep-kimi again, then run again")
        calls = config.calls if config else {}
        known = next(iter(calls.values()), None)
        url = self.options.url or self.env.get("AEP_URL", "").strip() or (known.url if known else "")
        token = self.options.token_file
        if token is None:
            token = known.token_file if known else ""
        control = self.options.control
        if control is None:
            control = "PreToolUse" in calls and calls["PreToolUse"].timeout_ms is not None
        return Registration(
            python=interpreter(),
            shim=str(SHIM),
            url=blocks.hook_url(url or blocks.DEFAULT_URL),
            token_file=os.path.abspath(os.path.expanduser(token)) if token else "",
            control=control,
            events=self.events,
            windows=sys.platform == "win32",
            setsid=shutil.which("setsid", path=_SYSTEM_PATH) or "",
        )


def make(options: argparse.Namespace, env: Mapping[str, str]) -> Context:
    """Look at the machine; raises SetupError for options that make no sense."""
    if options.vendor_version and vendor.parse_version(options.vendor_version) is None:
        raise SetupError(f"--vendor-version `{options.vendor_version}` is no version; give one like 2.1.0")
    found = vendor.find(options.kimi, env) if options.ask else Vendor()
    return Context(options, env, vendor.home(options.home, env), found)


def interpreter() -> str:
    """The absolute path of this Python, as it was called: a link may outlive what it leads to."""
    if not sys.executable:
        raise SetupError(
            "this Python does not know its own path; run aep-setup with an absolute path of python"
        )
    return os.path.abspath(sys.executable)


def check_token(path: str) -> str:
    """The token in a file; raises SetupError where the shim could not use it."""
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8"
        raise SetupError(
            f"the token file {path} cannot be read ({reason.lower()}); put the token there, for you only"
        ) from None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SetupError(
            f"the token file {path} holds no token; put the token there, one line and nothing else"
        )
    return text


def load(context: Context, data: bytes | None) -> Config | None:
    """The config, None where there is none; raises SetupError where it cannot be read."""
    return edit.load(data, str(context.config)) if data is not None else None
