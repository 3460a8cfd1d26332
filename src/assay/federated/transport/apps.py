"""What runs inside Flower's processes: a ClientApp that asks the site, and a ServerApp that relays.

The server's rounds run in the `assay federate` process. The ServerApp takes that process's tasks from a Unix socket,
hands them to the nodes that hold the clients, and returns what they answer. So one process that we control owns the
ledger and the checkpoints, and none of Flower's processes can lose them when it dies.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from multiprocessing.connection import Client, Connection
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from assay.federated.transport.frames import (
    FrameError,
    pack,
    pack_answers,
    pack_tasks,
    unpack,
    unpack_answers,
    unpack_tasks,
    whole,
)
from assay.federated.transport.names import DEFAULT_SITE, SITE_VARIABLE
from assay.federated.transport.pinned import pin

_HELLO, _TASKS = "query", "train"
_ASK_AGAIN = 60.0  # seconds after which a node that did not say which clients it holds is asked again


class _Site(Protocol):
    def answer(self, client: int, task: bytes) -> bytes: ...


# ---------------------------------------------------------------------------------------------------- the node's side
def hello(message: Message, context: Context) -> Message:
    """Say which clients this node holds."""
    share = Share.of(context.node_config)
    return Message(as_content(pack({"node": [share.index, share.of_how_many]})), reply_to=message)


def work(message: Message, context: Context) -> Message:
    """Answer the tasks of this node's clients, under the node's plan and no other (`pinned`)."""
    return _answer(message, context, pin)


def virtual_work(message: Message, context: Context) -> Message:
    """Answer tasks in a simulation, where one operator runs server and clients, under the plan of the run."""
    return _answer(message, context, dict)


def _answer(message: Message, context: Context, agree: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Message:
    """Answer each task separately: one that fails does not affect the others.

    The reason stays on the node, because the text of an exception may hold data.
    """
    share, answers = Share.of(context.node_config), []
    header, blobs = unpack(frame_of(message))
    for client, task in unpack_tasks(header, blobs).items():
        try:
            if not share.holds(client):
                raise PermissionError(f"client {client} is not among those this node holds")
            site = site_of(json.dumps(agree(header["settings"]), sort_keys=True))
            answers.append((client, site.answer(client, task)))
        except Exception:
            traceback.print_exc()
    return Message(as_content(pack_answers(answers)), reply_to=message)


def _app(answer: Callable[[Message, Context], Message]) -> ClientApp:
    app = ClientApp()
    app.query()(hello)
    app.train()(answer)
    return app


client_app = _app(work)  # a separate statement, because Flower looks for this name without running the file
virtual_app = _app(virtual_work)


@lru_cache(maxsize=1)
def site_of(settings: str) -> _Site:
    """The site of this process. The node chooses its code, by environment variable; the server never does."""
    module, _, function = os.environ.get(SITE_VARIABLE, DEFAULT_SITE).partition(":")
    site: _Site = getattr(import_module(module), function)(json.loads(settings))
    return site


@dataclass(frozen=True, slots=True)
class Share:
    """Node `index` of `of_how_many` holds the clients that leave the remainder `index`: each client is held once."""

    index: int
    of_how_many: int

    def __post_init__(self) -> None:
        if whole(self.index) >= whole(self.of_how_many):
            raise FrameError(f"node {self.index} of {self.of_how_many}")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Share:
        return cls(config["partition-id"], config["num-partitions"])

    def holds(self, client: int) -> bool:
        return client % self.of_how_many == self.index


# -------------------------------------------------------------------------------------------------- the server's side
def serve(grid: Grid, context: Context) -> None:
    """Relay for the process that listens at the socket named in the run's configuration."""
    relay(grid, str(context.run_config["relay"]))


server_app = ServerApp()
server_app.main()(serve)


def relay(grid: Grid, socket: str) -> None:
    """Carry tasks and answers between the socket and the grid until the other side hangs up, for whatever reason."""
    with Client(socket, family="AF_UNIX") as line:
        try:
            _Relay(grid, line).run()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


@dataclass(slots=True)
class _Relay:
    grid: Grid
    line: Connection
    nodes: set[int] = field(default_factory=set)  # online, and known for what they hold
    holder: dict[int, int] = field(default_factory=dict)  # the node of each client
    asked: dict[int, float] = field(default_factory=dict)
    hellos: dict[str, int] = field(default_factory=dict)
    clients: int = 0
    number: int = 0

    def run(self) -> None:
        start, _ = unpack(self.line.recv_bytes())
        self.clients = start["clients"]
        self._gather(start["wait"])
        while True:
            header, blobs = unpack(self.line.recv_bytes())
            self.number = header["exchange"]
            self._exchange(unpack_tasks(header, blobs), start["settings"], start["patience"])

    def _gather(self, wait: float) -> None:
        """Wait until a node holds every client, or for `wait` seconds, and say which clients are missing."""
        deadline = time.monotonic() + wait
        while True:
            self._meet()
            missing = [client for client in range(self.clients) if client not in self.holder]
            if not missing or time.monotonic() > deadline:
                self.line.send_bytes(pack({"ready": len(self.nodes), "missing": missing}))
                return
            if self._spoken_to(0.5):
                return

    def _exchange(self, tasks: Mapping[int, bytes], settings: Mapping[str, Any], patience: float) -> None:
        deadline = time.monotonic() + patience
        self._meet()
        work: dict[int, dict[int, bytes]] = {}
        for client, task in tasks.items():
            if client in self.holder:
                work.setdefault(self.holder[client], {})[client] = task
        pending = {}
        for node, its_tasks in work.items():
            frame = pack_tasks(its_tasks, {"settings": dict(settings)})
            for identity in self._push(frame, node, _TASKS, patience):
                pending[identity] = node
        absent = set(tasks) - {client for its_tasks in work.values() for client in its_tasks}
        pause = 0.1
        while pending and time.monotonic() < deadline:
            for identity, reply in self._pull(pending):
                node = pending.pop(identity)
                absent |= self._hand_over(reply, work.pop(node))
            self._meet()
            pending = {identity: node for identity, node in pending.items() if node in self.nodes}
            if self._spoken_to(pause):
                return
            pause = min(1.5 * pause, 1.0)
        absent |= {client for its_tasks in work.values() for client in its_tasks}
        self.line.send_bytes(pack({"exchange": self.number, "missing": sorted(absent)}))

    def _hand_over(self, reply: Message, asked: Mapping[int, bytes]) -> set[int]:
        """Forward a node's answers; return which of its clients gave none. Answers for other clients are dropped."""
        silent = set(asked)
        if not reply.has_error():
            try:
                answers = unpack_answers(frame_of(reply))
            except FrameError:
                answers = []
            for client, answer in answers:
                if client in asked:
                    self.line.send_bytes(pack({"exchange": self.number, "answer": client}, [answer]))
                    silent.discard(client)
        return silent

    def _meet(self) -> None:
        """Forget nodes that have gone, ask new ones which clients they hold, and welcome those that have replied."""
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        if self.nodes - online:
            self.nodes &= online
            self.holder = {client: node for client, node in self.holder.items() if node in online}
        for node in sorted(online - self.nodes):
            if now - self.asked.get(node, -_ASK_AGAIN) >= _ASK_AGAIN:
                self.asked[node] = now
                self.hellos |= dict.fromkeys(self._push(pack({}), node, _HELLO, _ASK_AGAIN), node)
        for identity, reply in self._pull(self.hellos):
            node = self.hellos.pop(identity)
            if node in online and (share := _share(reply)) is not None:
                self._welcome(node, share)

    def _welcome(self, node: int, share: Share) -> None:
        """Add a node, unless another one online holds one of its clients: nobody's records take part twice."""
        clients = range(share.index, self.clients, share.of_how_many)
        if any(self.holder.get(client, node) != node for client in clients):
            claims = (
                f"a second node says it is node {share.index} of {share.of_how_many}, whose clients another one holds"
            )
            self.line.send_bytes(pack({"warning": f"{claims}: it is left out"}))
            return
        self.nodes.add(node)
        self.holder |= dict.fromkeys(clients, node)

    def _push(self, frame: bytes, node: int, kind: str, ttl: float) -> Iterable[str]:
        return [name for name in self.grid.push_messages([Message(as_content(frame), node, kind, ttl=ttl)]) if name]

    def _pull(self, identities: Iterable[str]) -> Iterator[tuple[str, Message]]:
        names = list(identities)
        for reply in self.grid.pull_messages(names) if names else ():
            if reply.metadata.reply_to_message_id in names:
                yield reply.metadata.reply_to_message_id, reply

    def _spoken_to(self, seconds: float) -> bool:
        """Wait, unless the other side hangs up or begins the next exchange."""
        return self.line.poll(seconds)


def _share(reply: Message) -> Share | None:
    try:
        header, _ = unpack(frame_of(reply))
        index, of_how_many = header["node"]
        return Share(index, of_how_many)
    except (FrameError, KeyError, TypeError, ValueError):
        return None


# ----------------------------------------------------------------------------------------- bytes in Flower's messages
def as_content(frame: bytes) -> RecordDict:
    """Bytes as an array: Flower sends arrays in chunks, of any total size, and sends equal chunks once."""
    return RecordDict({"frame": ArrayRecord({"bytes": Array(np.frombuffer(frame, dtype=np.uint8))})})


def frame_of(message: Message) -> bytes:
    """The bytes that a message carries."""
    try:
        record = message.content["frame"]
        assert isinstance(record, ArrayRecord)
        return bytes(record["bytes"].numpy())
    except Exception as error:  # untrusted content: whatever is wrong with it, it is not a frame
        raise FrameError("a message without a frame") from error
