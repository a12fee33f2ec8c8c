"""How far the measurement is: a bar where tqdm and a terminal are there, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any


class Progress:
    """Counts requests of all arms. Use it as a context manager; `advance` may be called from any thread."""

    def __init__(self, total: int, *, plain: bool = False) -> None:
        self.total, self.done = total, 0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._bar: Any = None if plain else _bar(total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, requests: int = 1) -> None:
        with self._lock:
            self.done += requests
            if self._bar is not None:
                self._bar.update(requests)

    def leave_out(self, requests: int) -> None:
        """Requests of an arm that will not be measured."""
        with self._lock:
            self.total -= requests
            if self._bar is not None:
                self._bar.total = self.total
                self._bar.refresh()

    def say(self, text: str) -> None:
        """One line above the bar; without a bar it carries the share done and the time left."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(f"[{self.where()}] {text}", file=sys.stderr, flush=True)

    def where(self) -> str:
        """ "12/96 requests, about 3:20 left", the time estimated from the requests done."""
        share = f"{self.done}/{self.total} requests"
        if not self.done:
            return share
        left = (time.monotonic() - self._start) / self.done * (self.total - self.done)
        return f"{share}, about {int(left) // 60}:{int(left) % 60:02d} left"


def _bar(total: int) -> Any:
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="request", smoothing=0.1)
