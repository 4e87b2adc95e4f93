"""A dataset at a glance: labels by client, sizes, examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Spread:
    """How samples are spread over clients."""

    counts: npt.NDArray[np.int64]
    """Samples by client and class."""
    sizes: npt.NDArray[np.int64]
    """Samples by client."""

    @property
    def mean_largest_share(self) -> float:
        """The share of a client's most frequent class in its data, averaged over clients."""
        return float((self.counts.max(axis=1) / np.maximum(1, self.sizes)).mean())


def spread(
    labels: npt.NDArray[np.int64], partition: Sequence[npt.NDArray[np.int64]], classes: int
) -> Spread:
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in partition])
    return Spread(counts, counts.sum(axis=1))


def image_figure(
    title: str,
    found: Spread,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    shown: int = 40,
) -> Figure:
    figure = _labels_and_sizes(title, found, shown)
    grid = figure.add_subplot(1, 3, 3)
    grid.imshow(_mosaic(images, labels), cmap="gray", interpolation="nearest")
    grid.set_title("examples, a row per class", fontsize=9)
    grid.set_axis_off()
    return figure


def review_figure(title: str, found: Spread, text: str, shown: int = 40) -> Figure:
    """Labelled texts; ``text`` has an example of each class."""
    figure = _labels_and_sizes(title, found, shown)
    _page(figure, "examples", text)
    return figure


def _labels_and_sizes(title: str, found: Spread, shown: int) -> Figure:
    figure, (left, middle) = _frame(title)
    counts = found.counts[:shown]
    bottom = np.zeros(len(counts))
    from matplotlib import colormaps

    colours = colormaps["tab10" if counts.shape[1] <= 10 else "nipy_spectral"]
    for number in range(counts.shape[1]):
        colour = colours(number / max(1, counts.shape[1] - 1))
        left.bar(np.arange(len(counts)), counts[:, number], 0.9, bottom=bottom, color=colour)
        bottom += counts[:, number]
    left.set_title(f"labels of the first {len(counts)} clients (a colour per class)", fontsize=9)
    left.set_xlabel("client")
    left.set_ylabel("samples")
    _sizes(middle, found.sizes)
    return figure


def text_figure(
    title: str,
    sizes: npt.NDArray[np.int64],
    names: Sequence[str],
    text: str,
    clients: str = "roles",
    samples: str = "windows",
) -> Figure:
    """``clients`` and ``samples`` are what they are called."""
    figure, (left, middle) = _frame(title)
    order = np.argsort(-sizes, kind="stable")[:15][::-1]
    left.barh([names[i] for i in order], sizes[order], color="#0072B2")
    left.tick_params(axis="y", labelsize=6)
    left.set_title(f"largest {clients}", fontsize=9)
    left.set_xlabel(f"training {samples}")
    _sizes(middle, sizes, log=True)
    _page(figure, "an excerpt of the largest", text)
    return figure


def _page(figure: Figure, title: str, text: str) -> None:
    page = figure.add_subplot(1, 3, 3)
    page.set_axis_off()
    page.set_title(title, fontsize=9)
    # No mathematics: texts have dollar signs.
    page.text(0.0, 0.98, text, family="monospace", fontsize=7, va="top", parse_math=False)


def _frame(title: str) -> tuple[Figure, tuple[Axes, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 2)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _sizes(panel: Axes, sizes: npt.NDArray[np.int64], log: bool = False) -> None:
    low, high = int(sizes.min()), int(sizes.max())
    bins: Any = 30
    if low == high:
        bins = np.array([low - 10.5, low - 0.5, low + 0.5, low + 10.5])
    elif log:
        bins = np.geomspace(max(1, low), high, 30)
        panel.set_xscale("log")
    panel.hist(sizes, bins=bins, color="#0072B2")
    title = f"samples per client: {low:,} to {high:,}, mean {sizes.mean():,.0f}"
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("samples")
    panel.set_ylabel("clients")


def _mosaic(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], columns: int = 10
) -> npt.NDArray[np.uint8]:
    """Ten examples of each of the first ten classes."""
    rows = []
    for number in range(min(10, int(labels.max()) + 1)):
        places = np.flatnonzero(labels == number)[:columns]
        row = [images[place] for place in places]
        row += [np.zeros_like(images[0])] * (columns - len(row))
        rows.append(np.concatenate(row, axis=1))
    return np.concatenate(rows, axis=0)
