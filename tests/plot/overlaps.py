"""Whether text in a figure overlaps other text, or leaves the figure."""

from __future__ import annotations

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
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


def _texts(figure: Figure) -> list[tuple[str, Bbox]]:
    found = []
    hidden = {id(text) for panel in figure.axes for text in _unused_ticks(panel)}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if not text.get_visible() or not text.get_text().strip() or id(text) in hidden:
            continue
        # An annotation's box would include its arrow and what it points at.
        box = (
            Text.get_window_extent(text)
            if isinstance(text, Annotation)
            else text.get_window_extent()
        )
        found.append((text.get_text(), box))
    return found


def _unused_ticks(panel: object) -> list[Text]:
    """Labels of ticks outside the axis, which are there but not drawn."""
    found: list[Text] = []
    for axis in (panel.xaxis, panel.yaxis):  # type: ignore[attr-defined]
        low, high = sorted(axis.get_view_interval())
        margin = 1e-9 * (high - low)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            outside = not low - margin <= tick.get_loc() <= high + margin
            for label, on in (
                (tick.label1, tick.label1On if False else tick.label1.get_visible()),
                (tick.label2, tick.label2.get_visible()),
            ):
                if outside or not on or not axis.get_visible():
                    found.append(label)
    return found


def _inside(box: Bbox, page: Bbox) -> bool:
    return bool(box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1)
