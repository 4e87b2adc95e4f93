"""The versions of one task's model, each kept for as long as a request needs it."""

from __future__ import annotations

from typing import final

import torch

from fedast.core.protocol import Version


@final
class VersionStore:
    """Flat vectors by version, reference-counted; the newest is always there."""

    def __init__(self, initial: torch.Tensor) -> None:
        self.newest: Version = 0
        self._vectors: dict[Version, torch.Tensor] = {0: initial}
        self._users: dict[Version, int] = {}

    def __getitem__(self, version: Version) -> torch.Tensor:
        return self._vectors[version]

    def __len__(self) -> int:
        return len(self._vectors)

    def versions(self) -> tuple[Version, ...]:
        return tuple(self._vectors)

    def put(self, version: Version, vector: torch.Tensor) -> None:
        """Set the value of a version that is kept, as a checkpoint has it."""
        if version not in self._vectors:
            raise KeyError(f"version {version} is no longer kept")
        self._vectors[version] = vector

    def publish(self, vector: torch.Tensor) -> None:
        """Make ``vector`` the newest version; the previous one is dropped if nobody uses it."""
        before, self.newest = self.newest, self.newest + 1
        self._vectors[self.newest] = vector
        if before not in self._users:
            del self._vectors[before]

    def skip_to(self, version: Version) -> None:
        """Count as if ``publish`` had been called that often; ``put`` brings the value."""
        self._vectors = {version: self._vectors[self.newest]}
        self.newest = version

    def retain(self, version: Version) -> None:
        if version not in self._vectors:
            raise KeyError(f"version {version} is no longer kept")
        self._users[version] = self._users.get(version, 0) + 1

    def release(self, version: Version) -> None:
        left = self._users[version] - 1
        if left:
            self._users[version] = left
            return
        del self._users[version]
        if version != self.newest:
            del self._vectors[version]
