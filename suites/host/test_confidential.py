"""Confidential computing: what the host can offer to its guests."""

import pytest

from pytest_gpuinfra import Expectation, GpuHost, explain
from pytest_gpuinfra.subjects.boot.confidential import ConfidentialComputing


@pytest.fixture
def confidential_says(gpu_confidential: ConfidentialComputing) -> str:
    """Give what the kernel has said of it since boot."""
    return "; ".join((*gpu_confidential.says_off, *gpu_confidential.says_on)) or "the kernel log says nothing of it"


@pytest.mark.gpu_expects("confidential")
def test_confidential_computing_is_in_the_expected_state(
    gpu_host: GpuHost,
    gpu_expect: Expectation,
    gpu_confidential: ConfidentialComputing,
    confidential_says: str,
) -> None:
    """
    The host offers the declared kind of confidential computing, and no stronger one goes missing unnoticed.

    The kernel switches SNP off, with one line in its log, when pass-through is the IOMMU's default.
    """
    assert gpu_confidential.level == gpu_expect.confidential, explain(
        f"{gpu_host.alias}: confidential computing",
        observed=f"{gpu_confidential.level} {confidential_says}",
        expected=gpu_expect.confidential,
        why="the confidential VM does not start, or starts without its protection",
        action="see BIOS (SMEE, SNP, RMP coverage), kvm_amd parameters, and that the IOMMU translates by default",
    )
