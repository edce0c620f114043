"""By topic: what calls the product and renames what it gives. Adapters judge nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.cases.adapters import (
    chat,
    container,
    driver_params,
    endpoint,
    iommu_mode,
    kernel_log,
    lspci,
    nccl_log,
    p2p_copy,
    smi_query,
    systemd,
    topology,
)
from tests.cases.adapters.result import Result
from tests.cases.case import Case

ADAPTERS: Mapping[str, Callable[[Case], Result]] = {
    "chat": chat.judge,
    "container": container.judge,
    "driver-params": driver_params.judge,
    "endpoint-health": endpoint.judge_health_case,
    "endpoint-metrics": endpoint.judge_metrics_case,
    "endpoint-models": endpoint.judge_models_case,
    "iommu-fault-log": kernel_log.judge,
    "iommu-mode": iommu_mode.judge,
    "lspci": lspci.judge,
    "nccl-log": nccl_log.judge,
    "p2p-copy": p2p_copy.judge,
    "smi-query": smi_query.judge,
    "systemd": systemd.judge,
    "topology": topology.judge,
    "xid-log": kernel_log.judge,
}
