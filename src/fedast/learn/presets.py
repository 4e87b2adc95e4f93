"""The tasks that come with fedast, by name (those of installed packages: ``learn.own``)."""

from __future__ import annotations

from collections.abc import Mapping

from fedast.learn.embedded_tasks import EMBEDDED
from fedast.learn.paper_tasks import PAPER
from fedast.learn.preset import Preset

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (*EMBEDDED, *PAPER)}
