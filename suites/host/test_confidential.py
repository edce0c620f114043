"""Confidential computing: what the host can offer to its guests."""

import pytest

from pytest_gpuinfra import Expectation, GpuHost, explain
from pytest_gpuinfra.subjects.boot.confidential import ConfidentialComputing


@pytest.fixture
def confidential_says(gpu_confidential: ConfidentialComputing) -> str:
    """Give what speaks against it, and what the kernel has said of it since boot."""
    return "; ".join((*gpu_confidential.against, *gpu_confidential.says_on)) or "the kernel log says nothing of it"


@pytest.fixture
def confidential_level(gpu_confidential: ConfidentialComputing) -> str:
    """
    Give the strongest kind that is offered.

    Raises:
        FactUnavailable: Parameter, log and device node do not decide it together.
    """
    return gpu_confidential.level


@pytest.mark.gpu_expects("confidential")
def test_confidential_computing_is_in_the_expected_state(
    gpu_host: GpuHost,
    gpu_expect: Expectation,
    confidential_level: str,
    confidential_says: str,
) -> None:
    """
    The host offers the declared kind of confidential computing, and no stronger one goes missing unnoticed.

    The kernel switches SNP off, with one line in its log, when pass-through is the IOMMU's default;
    the module's parameter, that log and /dev/sev are judged together.
    """
    assert confidential_level == gpu_expect.confidential, explain(
        f"{gpu_host.alias}: confidential computing",
        observed=f"{confidential_level}; {confidential_says}",
        expected=gpu_expect.confidential,
        why="the confidential VM does not start, or starts without its protection",
        action="see BIOS (SMEE, SNP, RMP coverage), kvm_amd parameters, and that the IOMMU translates by default",
    )
