"""What the ServerApp has to keep on disk because Flower does not."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeAlias, final

from fedast.core.protocol import ClientId
from fedast.federation.transport import Uploaded
from fedast.records.files import write_atomically

NodeId: TypeAlias = int


@final
class Spool:
    """Models, unacknowledged replies, and the numbers of the nodes."""

    def __init__(self, folder: Path) -> None:
        self._models, self._uploads = folder / "models", folder / "uploads"
        self._nodes = folder / "nodes.json"
        for path in (self._models, self._uploads):
            path.mkdir(parents=True, exist_ok=True)
        table = json.loads(self._nodes.read_text()) if self._nodes.exists() else {}
        self.numbers: dict[NodeId, ClientId] = {int(k): v for k, v in table.items()}

    def node(self, client: ClientId) -> NodeId | None:
        return next((node for node, number in self.numbers.items() if number == client), None)

    def number(self, node: NodeId) -> ClientId:
        """The number of this node as a client; a new node gets the next free one."""
        if node not in self.numbers:
            self.numbers[node] = len(self.numbers)
            write_atomically(self._nodes, json.dumps(self.numbers), durable=True)
        return self.numbers[node]

    def keep_model(self, name: str, data: bytes) -> None:
        write_atomically(self._models / name, data, durable=True)

    def drop_model(self, name: str) -> None:
        (self._models / name).unlink(missing_ok=True)

    def model(self, name: str) -> bytes | None:
        path = self._models / name
        return path.read_bytes() if path.exists() else None

    def keep(self, upload: Uploaded) -> None:
        head = asdict(replace(upload, data=b""))
        del head["sequence"], head["data"]
        text = json.dumps(head).encode() + b"\n" + upload.data
        write_atomically(self._uploads / f"{upload.sequence:015d}", text, durable=True)

    def kept(self) -> list[Uploaded]:
        found = []
        for path in sorted(self._uploads.iterdir()):
            if path.name.isdecimal():
                line, _, data = path.read_bytes().partition(b"\n")
                found.append(Uploaded(int(path.name), data=data, **json.loads(line)))
        return found

    def delete_upto(self, sequence: int) -> None:
        for path in self._uploads.iterdir():
            if path.name.isdecimal() and int(path.name) <= sequence:
                path.unlink()
