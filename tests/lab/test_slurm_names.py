"""Hosts named through a real slurmctld: what sinfo prints is what `--gpu-host=slurm:...` takes."""

from __future__ import annotations

import ast
import shlex
import sys
from pathlib import Path

import pytest

from pytest_gpuinfra.errors import InventoryError
from pytest_gpuinfra.inventory.names import slurm

from .slurm import SlurmCluster

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


def test_partition_and_nodes_are_hosts_down_ones_too(tmp_path: Path) -> None:
    """By sinfo as it is; a node that is down is named, so that it ends in ERROR instead of being absent."""
    with SlurmCluster(tmp_path / "shared", nodes=3) as cluster:
        cluster.run("scontrol update nodename=node2 state=down reason=test")
        cluster.wait_for("node2", "down")
        code = (
            "import sys; from pytest_gpuinfra.inventory.names.slurm import slurm_hosts; "
            "print([[(h.name, h.address, h.groups) for h in slurm_hosts(w)] for w in sys.argv[1:]])"
        )
        asked = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-c", code, "gpu", "node[3,1]", "all"]
        partition, nodes, every = ast.literal_eval(cluster.run(shlex.join(asked)).stdout)
        text = cluster.run(shlex.join(slurm.ARGV)).stdout
    assert [name for name, _, _ in partition] == [name for name, _, _ in every] == ["node1", "node2", "node3"]
    assert [name for name, _, _ in nodes] == ["node1", "node3"]
    assert {groups for _, _, groups in partition} == {("gpu",)}
    assert {address for _, address, _ in partition} == {f"10.79.0.1{number}" for number in (1, 2, 3)}
    with pytest.raises(InventoryError, match="no partition or node 'node4'; did you mean 'node"):
        slurm.pick_slurm_hosts(text, "node4")
