"""The tasks that come with fedast, by name. (``own`` finds those of installed packages.)"""

from __future__ import annotations

from collections.abc import Mapping

from fedast.tasks.embedded import EMBEDDED
from fedast.tasks.paper import PAPER
from fedast.tasks.preset import Preset

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (*EMBEDDED, *PAPER)}
