"""Drift: is what is deployed, what systemd holds, and what runs, what the user's repository says?"""

import pytest

from pytest_gpuinfra import GpuHost, explain
from pytest_gpuinfra.fixtures.host import GpuEvidence
from pytest_gpuinfra.session.items_service import ExpectedSetting
from pytest_gpuinfra.subjects.service.drift import Drift, argument_is
from pytest_gpuinfra.subjects.service.environment import EffectiveVariable
from pytest_gpuinfra.subjects.service.process import ServiceProcess


@pytest.mark.gpu_expects("service.unit_file_text")
def test_unit_file_equals_the_users_copy(
    gpu_host: GpuHost, gpu_unit_file_drift: Drift, gpu_evidence: GpuEvidence
) -> None:
    """
    The deployed unit file is the one in the user's repository, line for line.

    A change made on the machine is lost at the next deployment, or lives on where nobody knows of it.
    """
    gpu_evidence.attach("comparison", str(gpu_unit_file_drift))

    assert not gpu_unit_file_drift.found, explain(
        f"{gpu_host.alias}: unit file of {gpu_host.selected.spec.service}",
        observed=f"another text\n{gpu_unit_file_drift}",
        expected=f"the text of {gpu_host.expect.service.unit_file or 'unit_file_text'}",
        why="what runs was not reviewed, and the next deployment changes it back",
        action="deploy the copy again and reload, or take the change over into the repository",
    )


@pytest.mark.gpu_judges("service.drop_in_texts")
def test_drop_ins_equal_the_users_copies(
    gpu_host: GpuHost, gpu_drop_in_drift: Drift, gpu_evidence: GpuEvidence
) -> None:
    """
    The unit has the drop-ins that the user keeps copies of, and no other.

    One line in a drop-in overrides the unit file that everybody reads.
    """
    gpu_evidence.attach("comparison", str(gpu_drop_in_drift))

    assert not gpu_drop_in_drift.found, explain(
        f"{gpu_host.alias}: drop-ins of {gpu_host.selected.spec.service}",
        observed=gpu_drop_in_drift,
        expected=", ".join(gpu_host.expect.service.drop_ins) or "none",
        why="settings of the unit are changed where the unit file does not show it",
        action="remove what is not wanted (systemctl revert), or keep a copy and name it in service.drop_ins",
    )


def test_no_reload_is_pending(gpu_host: GpuHost, gpu_reload_drift: Drift) -> None:
    """
    systemd holds what is on disk: no reload is pending.

    For a drop-in in a directory that is new, systemd itself says that none is.
    """
    assert not gpu_reload_drift.found, explain(
        f"{gpu_host.alias}: {gpu_host.selected.spec.service} as systemd holds it",
        observed=gpu_reload_drift,
        expected="what its files say",
        why="the next restart, by hand or by systemd, starts the old settings or, after a reload, other ones",
        action="systemctl daemon-reload, then restart the service when it may be restarted",
    )


def test_running_process_is_newer_than_its_files(gpu_host: GpuHost, gpu_process_drift: Drift) -> None:
    """
    Nothing that the running process was started from was changed after its start.

    That is its unit file, its drop-ins, its environment files, and its Python's sitecustomize.
    """
    assert not gpu_process_drift.found, explain(
        f"{gpu_host.alias}: running process of {gpu_host.selected.spec.service}",
        observed=gpu_process_drift,
        expected="started after the last change of its files",
        why="what runs is not what the files say, and the next restart will change it",
        action="restart the service when it may be restarted, then prove it anew",
    )


@pytest.mark.gpu_judges("service.environment")
def test_variable_is_in_effect_in_every_process(
    gpu_host: GpuHost, gpu_service_variable: ExpectedSetting, gpu_service_variable_seen: EffectiveVariable
) -> None:
    """
    A variable has its expected value in every process of the service, whoever set it.

    Unit, drop-in, environment file, sitecustomize and wrapper all set variables, and ranks inherit what is left.
    """
    expected = None if gpu_service_variable.value is False else str(gpu_service_variable.value)

    assert gpu_service_variable_seen.wrong(expected) == (), explain(
        f"{gpu_host.alias}: {gpu_service_variable.name} in {gpu_host.selected.spec.service}",
        observed=gpu_service_variable_seen,
        expected=gpu_service_variable.words,
        why="NCCL, CUDA and the engine read it once at their start and take another path without it",
        action="set it in the layer that sets it, or in the unit's Environment=, then reload and restart",
    )


@pytest.mark.gpu_judges("service.arguments")
def test_argument_is_in_effect(
    gpu_host: GpuHost,
    gpu_service_argument: ExpectedSetting,
    gpu_service_argument_seen: tuple[str | bool, ServiceProcess],
) -> None:
    """
    An argument of the running process has its expected value.

    The command line of the process counts, not the unit file: it may be older, or changed by a wrapper.
    """
    assert argument_is(gpu_service_argument_seen[0], gpu_service_argument.value), explain(
        f"{gpu_host.alias}: {gpu_service_argument.name} of {gpu_host.selected.spec.service}",
        observed=f"{gpu_service_argument_seen[0]} in {gpu_service_argument_seen[1]}",
        expected=gpu_service_argument.words,
        why="the model is served otherwise than it was sized and proven",
        action="correct ExecStart, reload, and restart the service when it may be restarted",
    )
