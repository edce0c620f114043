"""
Compose the reference host: eight Blackwell GPUs, four of them for a service, four for a confidential VM.

Composed from documented formats, after the story this project comes from; no such recording exists.
`python -m tests.recorded.reference.compose` writes recording.json beside this file.
"""

from __future__ import annotations

from pathlib import Path

from pytest_gpuinfra.host.facts import UNIT_PROPERTIES
from pytest_gpuinfra.host.requests import requests_on_host
from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.recorded.made_host import MadeFunction, MadeHost
from tests.recorded.reference.serving import serving_answers

HERE = Path(__file__).parent
_MEM32, _MEM64 = 0x40200, 0x14220C
_BAR1 = {
    "01": 0x2C000000000,
    "11": 0x24000000000,
    "61": 0x34000000000,
    "71": 0x38000000000,
    "81": 0x44000000000,
    "91": 0x48000000000,
    "e1": 0x54000000000,
    "f1": 0x58000000000,
}


def reference_host() -> MadeHost:
    """Give the host as it stood: translation on, faults by two GPUs, everything else right."""
    functions = []
    for number, (bus, bar1) in enumerate(_BAR1.items()):
        numa = number // 4
        port = f"0000:{int(bus, 16) - 1:02x}:01.1"
        driver = "nvidia" if numa == 0 else "vfio-pci"
        functions += [
            MadeFunction(port, (), 0x1022, 0x153E, 0x060400, "pcieport", 10 + number, numa, acs_control=0x1D),
            MadeFunction(
                f"0000:{bus}:00.0",
                (port,),
                driver=driver,
                group=40 + number,
                numa_node=numa,
                bars={
                    0: (0xB0000000 + number * 0x4000000, 0x4000000, _MEM32),
                    1: (bar1, 0x2000000000, _MEM64),
                    3: (bar1 + 0x2000000000, 0x2000000, _MEM64),
                },
            ),
            MadeFunction(
                f"0000:{bus}:00.1",
                (port,),
                device=0x22E8,
                class_code=0x040300,
                driver="snd_hda_intel" if numa == 0 else "vfio-pci",
                group=40 + number,
                numa_node=numa,
                bars={0: (0xA0000000 + number * 0x4000, 0x4000, _MEM32)},
            ),
        ]
    line = "BOOT_IMAGE=/boot/vmlinuz-6.14.11-4-pve root=/dev/mapper/pve-root ro quiet amd_iommu=on"
    return MadeHost(
        functions,
        files={
            "/proc/sys/kernel/random/boot_id": "5b0f0b7e-8a3e-4a2b-9c56-3f1f6f0d7a11\n",
            "/proc/uptime": "11423.77 690123.10\n",
            "/proc/sys/kernel/osrelease": "6.14.11-4-pve\n",
            "/proc/cmdline": line + "\n",
            "/proc/driver/nvidia/params": 'ResmanDebugLevel: 4294967295\nDmaRemapPeerMmio: 1\nRegistryDwords: ""\n',
            "/proc/driver/nvidia/version": (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  "
                "(dvs-builder@U22-I3-B17-02-5)  Tue Sep 23 09:55:41 UTC 2025\n"
                "GCC version:  gcc version 14.2.0 (Debian 14.2.0-19)\n"
            ),
            "/sys/module/kvm_amd/parameters/sev": "Y\n",
            "/sys/module/kvm_amd/parameters/sev_es": "Y\n",
            "/sys/module/kvm_amd/parameters/sev_snp": "Y\n",
            "/dev/sev": "",
        },
        kmsg=[
            (5, 0.0, "Linux version 6.14.11-4-pve (build@proxmox) (gcc (Debian 14.2.0-19) 14.2.0) #1 SMP"),
            (6, 0.0, f"Command line: {line}"),
            (6, 0.000001, "BIOS-provided physical RAM map:"),
            (6, 0.51, "SEV-SNP: RMP table physical range [0x0000000077600000 - 0x00000000877fffff]"),
            (4, 0.83, "AMD-Vi: Unknown option - 'on'"),
            (6, 1.12, "iommu: Default domain type: Translated"),
            (6, 1.12, "iommu: DMA domain TLB invalidation policy: lazy mode"),
            (6, 1.31, "AMD-Vi: Interrupt remapping enabled"),
            (6, 8.41, "kvm_amd: SEV-SNP enabled (ASIDs 1 - 99)"),
            (6, 9.02, "nvidia-nvlink: Nvlink Core is being initialized, major device number 234"),
            (
                6,
                9.03,
                "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  "
                "(dvs-builder@U22-I3-B17-02-5)  Tue Sep 23 09:55:41 UTC 2025",
            ),
            (6, 11.7, "vfio-pci 0000:81:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none"),
            (
                3,
                4211.402118,
                "nvidia 0000:01:00.0: AMD-Vi: Event logged "
                "[IO_PAGE_FAULT domain=0x0021 address=0x24000000000 flags=0x0020]",
            ),
            (
                3,
                4211.402977,
                "nvidia 0000:11:00.0: AMD-Vi: Event logged "
                "[IO_PAGE_FAULT domain=0x0022 address=0x34000010000 flags=0x0020]",
            ),
        ],
        asked=requests_on_host(read_inventory(HERE / "gpuinfra.toml").hosts["node-a"]),
        answered=serving_answers(),
        commands={
            "nvidia-smi -q -x": smi_xml([bus for bus in _BAR1 if int(bus, 16) < 0x80]),
            "nvidia-smi topo -m": smi_matrix(
                4, "NODE", "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-63\t0\t\tN/A"
            ),
            "nvidia-smi topo -p2p r": smi_matrix(4, "OK", "\t", "\t", " "),
            _show("gpu-iommu-identity.service"): (
                "Id=gpu-iommu-identity.service\nLoadState=loaded\nActiveState=inactive\nSubState=dead\n"
                "UnitFileState=disabled\nResult=success\nNRestarts=0\nActiveEnterTimestampMonotonic=0\n"
                "InactiveEnterTimestampMonotonic=0\nExecMainStartTimestampMonotonic=0\nConditionResult=no\n"
            ),
            _show("nvidia-persistenced.service"): (
                "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nSubState=running\n"
                "UnitFileState=enabled\nResult=success\nNRestarts=0\nActiveEnterTimestampMonotonic=13120456\n"
                "InactiveEnterTimestampMonotonic=0\nExecMainStartTimestampMonotonic=13090111\nConditionResult=yes\n"
            ),
        },
    )


def smi_xml(buses: list[str]) -> str:
    """Give what `nvidia-smi -q -x` prints of healthy GPUs, cut down to what is read (nvsmi_device_v13.dtd)."""
    gpus = "".join(
        f"""<gpu id="00000000:{bus.upper()}:00.0">
<product_name>NVIDIA RTX PRO 6000 Blackwell Workstation Edition</product_name>
<product_architecture>Blackwell</product_architecture>
<persistence_mode>Enabled</persistence_mode><compute_mode>Default</compute_mode>
<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
<uuid>GPU-00000000-0000-4000-8000-0000000000{bus}</uuid>
<gpu_recovery_action>None</gpu_recovery_action>
<pci><pci_bus_id>00000000:{bus.upper()}:00.0</pci_bus_id><pci_gpu_link_info>
<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
</pci_gpu_link_info><replay_counter>0</replay_counter></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
<clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
</clocks_event_reasons>
<fb_memory_usage><total>97887 MiB</total><reserved>600 MiB</reserved><used>74210 MiB</used><free>23077 MiB</free>
</fb_memory_usage>
<utilization><gpu_util>0 %</gpu_util></utilization>
<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
<ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_correctable>0</dram_correctable>
<dram_uncorrectable>0</dram_uncorrectable></volatile><aggregate><sram_correctable>0</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity><sram_uncorrectable_secded>0</sram_uncorrectable_secded>
<dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable>
<sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate><channel_repair_pending>No</channel_repair_pending>
<tpc_repair_pending>No</tpc_repair_pending></ecc_errors>
<retired_pages><pending_blacklist>N/A</pending_blacklist><pending_retirement>N/A</pending_retirement></retired_pages>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure><row_remapper_histogram>
<row_remapper_histogram_max>512 bank(s)</row_remapper_histogram_max>
<row_remapper_histogram_low>0 bank(s)</row_remapper_histogram_low>
<row_remapper_histogram_none>0 bank(s)</row_remapper_histogram_none></row_remapper_histogram></remapped_rows>
<temperature><gpu_temp>41 C</gpu_temp></temperature>
<gpu_power_readings><current_power_limit>600.00 W</current_power_limit>
<default_power_limit>600.00 W</default_power_limit></gpu_power_readings>
<fabric><state>N/A</state><status>N/A</status><health><summary>N/A</summary></health></fabric>
</gpu>"""
        for bus in buses
    )
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        f"<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>\n"
        f"<attached_gpus>{len(buses)}</attached_gpus>\n{gpus}\n</nvidia_smi_log>\n"
    )


def smi_matrix(count: int, word: str, heading: str, beside: str, before: str = "") -> str:
    """Give what `nvidia-smi topo` prints of GPUs that are all connected alike."""
    gpus = [f"GPU{number}" for number in range(count)]
    rows = ("\t".join("X" if one == other else word for other in gpus) for one in gpus)
    lines = [f"{before}{one}\t{row}{beside}" for one, row in zip(gpus, rows, strict=True)]
    return "\n".join([f"{before}\t{chr(9).join(gpus)}{heading}", *lines]) + "\n"


def _show(unit: str) -> str:
    return f"systemctl show --no-pager -p {UNIT_PROPERTIES} -- {unit}"


def compose() -> Recording:
    """Give the recording."""
    spec = read_inventory(HERE / "gpuinfra.toml").hosts["node-a"]
    capture = reference_host().capture("node-a", spec.expect, reached_by="composed, not recorded")
    return Recording(
        {"node-a": RecordedHost(spec.model_dump(mode="json", exclude_defaults=True), capture)},
        (),
        "2026-11-29T12:00:00+00:00",
        "composed",
    )


if __name__ == "__main__":
    print(write_recording(HERE / "recording.json", compose()))
