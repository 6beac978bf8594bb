"""Virtual environments: one with torch and numpy, and one for each peer that uses it.

A peer's environment has the other packages that the peer needs, and its own numpy if it requires
one. A constraint keeps torch at one version.
"""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

TORCH = "torch==2.13.0"
BASE = ("numpy", TORCH)
LIMIT = 900  # seconds for one environment
PROBLEM = re.compile(r"^\s*(?:\w+Error: .*|ERROR: .*|error: .*)$", re.M)


class NotInstalled(Exception):
    """pip could not install a peer; the message says why."""


class Environments:
    """Environments below one folder, made on request and kept.

    What could not be installed is not tried again until its folder is removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def python(self, name: str, packages: tuple[str, ...]) -> Path:
        """Return the interpreter of an environment that has ``packages`` and torch."""
        base = self._made("base", BASE, None)
        return self._made(name, packages, base) / "bin" / "python"

    def _made(self, name: str, packages: tuple[str, ...], base: Path | None) -> Path:
        place = self.folder / name
        done, refused = place / "installed.json", place / "refused.txt"
        wanted = json.dumps(packages)
        if done.exists() and done.read_text() == wanted:
            return place
        if refused.exists():
            raise NotInstalled(refused.read_text())
        print(f"making {place}: {' '.join(packages) or 'nothing but torch'}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        if base is not None:
            (site(place) / "base.pth").write_text(f"{site(base)}\n")
        try:
            install(place, packages)
        except NotInstalled as error:
            refused.write_text(str(error))
            raise
        done.write_text(wanted)
        return place


def site(place: Path) -> Path:
    """Return where an environment's packages are."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))


def install(place: Path, packages: tuple[str, ...]) -> None:
    """Install with pip, without caching; raise an error with pip's reason."""
    if not packages:
        return
    constraints = place / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    pip = [place / "bin" / "python", "-m", "pip", "install", "--no-cache-dir", "-c", constraints]
    try:
        done = subprocess.run([*pip, *packages], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took longer than {LIMIT} s") from None
    if done.returncode:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        reasons = PROBLEM.findall("\n".join(lines))
        specific = [one for one in reasons if "subprocess-exited" not in one]
        last = (specific or reasons or lines or ["pip said nothing"])[-1]
        raise NotInstalled(last.strip())
