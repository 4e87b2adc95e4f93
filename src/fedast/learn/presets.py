"""Every task that can be named: those that come with fedast and those of installed plug-ins."""

from __future__ import annotations

from collections.abc import Mapping

from fedast.learn.embedded_tasks import EMBEDDED
from fedast.learn.paper_tasks import PAPER
from fedast.learn.preset import Preset

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (*EMBEDDED, *PAPER)}
