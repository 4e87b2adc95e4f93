"""What every process of a federation imports; the fork server loads it once (``forked``)."""

from __future__ import annotations

import nats  # noqa: F401
import prometheus_client  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch

import fedast.cli.federation
import fedast.cli.main
import fedast.federation.nats.client
import fedast.federation.nats.server
import fedast.run.federate
import fedast.run.serve  # noqa: F401

torch.set_num_threads(1)  # the processes of a campaign share a few cores
