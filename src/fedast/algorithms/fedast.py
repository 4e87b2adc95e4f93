"""FedAST: Federated Asynchronous Simultaneous Training.

Askin, Sharma, Joe-Wong, Joshi: "FedAST: Federated Asynchronous Simultaneous
Training", UAI 2024 (Algorithms 2 and 3).

The rule. Each task m keeps R_m requests at uniformly random clients and averages
its updates in a buffer of b_m (``asynchronous.py``). With the dynamic option,
FedAST(D), the targets R_m are set from time to time in proportion to the square
root of the measured variance of the task's updates, and b_m follows so that
R_m / b_m stays near what it was at the start. FedAST(S) keeps the allocation;
FedAST-NoBuffer has b_m = 1 throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, SerializeAsAny

from fedast.algorithms.allocation import ALLOCATION_RULES, AllocationOptions, SqrtVariance
from fedast.algorithms.options import USUAL_RATIO, BufferedOptions, LearningRate
from fedast.core.protocol import Algorithm, Pool, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.registry import Part


class FedASTDynamic(BufferedOptions):
    """FedAST(D): asynchronous and buffered, requests move between tasks by their variance."""

    name: ClassVar[str] = "fedast-d"
    display_name: ClassVar[str] = "FedAST(D)"
    colour: ClassVar[str] = "#0072B2"
    allocation_rule: Annotated[SerializeAsAny[AllocationOptions], Part(ALLOCATION_RULES)] = (
        SqrtVariance()
    )
    """How a variance becomes a share of the requests (fedast list allocations), or your own
    package.module:function of the variance and the task."""
    variance_window: int = Field(8, ge=2)
    """Latest updates per task (V) from which its variance is estimated."""
    period: float = Field(0.75, gt=0)
    """Reallocate every period * tasks * requests updates."""

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return self.buffers(
            tasks,
            pool,
            stream,
            allocation_rule=self.allocation_rule.build(),
            variance_window=self.variance_window,
            period=self.period,
        )


class FedASTStatic(BufferedOptions):
    """FedAST(S): asynchronous and buffered, with a fixed allocation."""

    name: ClassVar[str] = "fedast-s"
    display_name: ClassVar[str] = "FedAST(S)"
    colour: ClassVar[str] = "#56B4E9"

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return self.buffers(tasks, pool, stream)


class FedASTNoBuffer(BufferedOptions):
    """FedAST-NoBuffer: every single update steps the model."""

    name: ClassVar[str] = "fedast-nobuffer"
    display_name: ClassVar[str] = "FedAST-NoBuffer"
    colour: ClassVar[str] = "#009E73"
    buffered = False
    server_lr: LearningRate = 0.038
    """Server learning rate eta_s of tasks that set none (and have no adaptive server optimizer)."""
    evaluate_every: int = Field(4, ge=1)
    """Evaluations as often as with a buffer of R/ratio and this many rounds between."""

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return self.buffers(tasks, pool, stream)

    def evaluation_period(self, hint: int | None, requests: int) -> int:
        usual = hint or self.evaluate_every
        return max(1, round(usual * requests / (self.ratio or USUAL_RATIO)))
