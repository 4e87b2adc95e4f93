"""Whether text in a figure overlaps other text, or leaves the figure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SLACK = 0.5
"""Points by which boxes may overlap: they are a little larger than the letters in them."""


def overlaps(figure: Figure) -> list[str]:
    """Each pair of texts that overlap, and each text that is cut off."""
    figure.draw_without_rendering()
    slack = SLACK * figure.dpi / 72
    boxes = [(text, box.padded(-slack)) for text, box in _texts(figure)]
    page = figure.bbox.padded(slack)
    found = [f"{text!r} is cut off" for text, box in boxes if not _inside(box, page)]
    return found + [
        f"{one!r} overlaps {other!r}"
        for (one, a), (other, b) in combinations(boxes, 2)
        if a.overlaps(b)
    ]


def _texts(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    undrawn = {id(text) for panel in figure.axes for text in _undrawn(panel)}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in undrawn:
            # Of an annotation, without what it points at.
            yield text.get_text(), Text.get_window_extent(text)


def _undrawn(panel: Axes) -> Iterator[Text]:
    """Labels of ticks outside the axis, which exist but are not drawn."""
    for axis in (panel.xaxis, panel.yaxis):
        low, high = sorted(axis.get_view_interval())
        margin = 1e-9 * (high - low)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if not low - margin <= tick.get_loc() <= high + margin:
                yield from (tick.label1, tick.label2)


def _inside(box: Bbox, page: Bbox) -> bool:
    return bool(box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1)
