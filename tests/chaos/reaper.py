"""Death comes to engines on Ray."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter

from teola_plugin import runtime
from teola_plugin.runtime.hosts.ray.actor import EngineActor
from teola_plugin.runtime.hosts.ray.transport import RayTransport
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from tests.chaos.apps import IS_FULL

KILL_EVERY_S = 5 if IS_FULL else 2.5
FREEZES = 3 if IS_FULL else 1
FREEZE_S = 3


class Reaper(threading.Thread):
    """Kills, and now and then freezes, a random engine's process."""

    def __init__(self, engines: dict[str, RemoteEngine]) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.did: Counter[str] = Counter()
        self._engines = engines
        self._drawn = random.Random(7)

    def run(self) -> None:
        turn = 0
        while not self.over.wait(KILL_EVERY_S):
            name = self._drawn.choice([*self._engines])
            try:
                pid = asyncio.run_coroutine_threadsafe(_pid(name), runtime.host.loop).result(20)
            except Exception:  # it is being restarted: it has been killed enough
                continue
            if turn % 4 == 2 and self.did["freeze"] < FREEZES:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(FREEZE_S)
                os.kill(pid, signal.SIGCONT)
                self.did["freeze"] += 1
            else:
                os.kill(pid, signal.SIGKILL)
                self.did["kill"] += 1
            turn += 1


async def _pid(name: str) -> int:
    return (await RayTransport(EngineActor, None, name=name).hello()).pid
