"""A peer's process, as the driver sees it: send a request, receive an answer."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
LIMIT = 240  # seconds for one answer
LEAST = 2  # seconds; with less it is not worth starting a process


class Failed(Exception):
    """The peer answered with an error, ended, or did not answer in time."""


class Process:
    """One peer in its own interpreter and process group; restarted after it failed.

    It fails if it has not answered by ``until``, a time of the monotonic clock.
    """

    def __init__(self, python: Path, name: str, log: Path) -> None:
        self.until = math.inf
        self._command = [str(python), "-m", "peer.serve", name]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """Return the answer to one request."""
        limit = min(LIMIT, self.until - time.monotonic())
        if limit < LEAST:
            raise Failed(f"{do}: no time left")
        process = self._started()
        try:
            process.stdin.write(json.dumps({"do": do} | given) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], limit)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            why = (
                f"no answer within {limit:.0f} s"
                if line is None
                else f"ended: {self._last_words()}"
            )
            raise Failed(f"{do}: {why}")
        answer = json.loads(line)
        if "error" in answer:
            self.close()  # what it left running must not disturb the next
            raise Failed(f"{do}: {answer['error']}")
        return answer

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=HERE, env=env, text=True, start_new_session=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
        return self._process

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no word"

    def close(self) -> None:
        """End it and all its workers."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                stream.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
