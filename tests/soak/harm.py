"""The protocol of a fault or an attack. A new one is one small class in ``faults``, ``mistakes``,
``attacks`` or ``lies``, and its line in the table at the end of that module."""

from __future__ import annotations

from typing import Protocol

from tests.soak.scene import Scene


class Harm(Protocol):
    """A fault or an attack. One object is used for one time only, so it may remember things."""

    @property
    def name(self) -> str:
        """As the table has it."""
        ...

    async def inflict(self, scene: Scene) -> None:
        """Do it; all that was stopped is started again. ``Unavailable`` if it cannot be done
        here."""
        ...

    async def recovered(self, scene: Scene) -> bool:
        """Whether what was harmed is whole again. It is asked until it is, for a limited time;
        that training goes on, with all requests and clients, is checked anyhow."""
        ...


class Unavailable(Exception):
    """It cannot be done here; the text says what is missing."""
