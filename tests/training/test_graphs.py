"""Graphs that share their memory."""

from __future__ import annotations

import gc

import pytest
import torch

from fedast.training.graphs import Graphs


@pytest.mark.cuda
def test_each_gives_its_own_result_in_any_order() -> None:
    graphs, made = Graphs(), []
    for factor in (2.0, 3.0, 5.0):
        x = torch.zeros(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with graphs.capture(graph):
            y = (x * factor + 1.0).cos().sum()  # with memory in between that others use, too
        made.append((graph, factor, x, y))
    for turn in range(12):
        graph, factor, x, y = made[turn * 7 % 3]
        x.fill_(turn)
        graph.replay()
        torch.testing.assert_close(y, (x * factor + 1.0).cos().sum())


@pytest.mark.cuda
def test_after_a_failure_others_are_captured_and_garbage_is_collected() -> None:
    graphs, x = Graphs(), torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError), graphs.capture(torch.cuda.CUDAGraph()):  # noqa: PT012
        if float(x.sum()) > 0.0:  # asks the host
            x.add_(1.0)
    torch.cuda.synchronize()
    assert gc.isenabled()
    assert torch.rand(3, device="cuda").isfinite().all(), "random numbers can be drawn"
    graph = torch.cuda.CUDAGraph()
    with graphs.capture(graph):
        x.mul_(2.0)
    graph.replay()
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_what_lacks_memory_is_made_once_more() -> None:
    tries: list[int] = []

    def make() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError
        return "made"

    assert Graphs().with_room(make) == "made"


@pytest.mark.cuda
def test_memory_that_no_graph_has_any_more_is_not_captured_into() -> None:
    graphs, x = Graphs(), torch.ones(3, device="cuda")
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with graphs.capture(graph):
            x.mul_(2.0)
        graph.replay()
        del graph
    assert x.tolist() == [8.0, 8.0, 8.0]
