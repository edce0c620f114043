"""A fact that is parsed is judged, noted, compared or explained: none is read off a machine and then dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.unit.test_reachable import definitions, reached, trees

FACTS = ("subjects.", "endpoint.")
SETTINGS = {"endpoint.embedded: ServerSettings"}
"""Dataclasses that are no facts: handed over whole."""
AWAITING = {
    "endpoint.models: ServedModel: root",
    "endpoint.server_info: ServerInfo: custom_all_reduce_off",
    "subjects.gpu.driver: DriverVersion: build",
    "subjects.gpu.health: HealthTable: date",
    "subjects.gpu.nvidia_smi: SmiFailure: nvml_version",
    "subjects.gpu.table: GpuProcess: used_mib",
    "subjects.gpu.table: MigDevice: memory_total_mib",
    "subjects.kernel_log.iommu_boot: IommuBoot: policy unknown_options",
    "subjects.kernel_log.iommu_fault: IommuFault: domain flags pasid",
    "subjects.kernel_log.xid: SXid: link",
    "subjects.kernel_log.xid: Xid: link mig_instance rate_limited recovery_from registers",
    "subjects.kernel_log.xid_table: XidTable: date",
    "subjects.participation.samples: GpuUse: uuid",
    "subjects.pci.config_space: AcsControl: capability",
    "subjects.pci.pci_bar: Bar: flags",
    "subjects.service.filesystem: Mount: options",
    "subjects.transfers.all_reduce: RankChannels: detail",
    "subjects.transfers.all_reduce: SumResult: elements",
    "subjects.transfers.nccl_edge: NcclEdge: channel detail direction dst_bus_id net_device "
    "proxy_rank reads src_bus_id",
    "subjects.transfers.nccl_log: NcclLog: complete_ranks",
    "subjects.transfers.nccl_log: NcclWarning: cuda_error",
    "subjects.transfers.program: ProgramDevice: uuid",
    "subjects.transfers.program: ProgramPlan: kernel",
}
"""Fields that nothing uses yet: each is to be used, or to go; nothing is added here."""


def is_dataclass(node: ast.AST) -> bool:
    """Whether a class is a dataclass."""
    decorators = node.decorator_list if isinstance(node, ast.ClassDef) else []
    return any("dataclass" in ast.unparse(one) for one in decorators)


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Give the public fields of a dataclass."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and not part.target.id.startswith("_"):
            yield part.target.id


def read_in(node: ast.AST) -> set[str]:
    """Give the names of the attributes that a piece of code reads, those included that it names in a text."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and "_" in part.value:
            found.add(part.value)  # getattr(info, "tp_size"), and tables of names
    return found


def code() -> Iterator[tuple[str, ast.AST]]:
    """Give (name of the method, code) of everything that runs; the name is "" for what nothing has to read first."""
    known = reached()
    for module, tree in trees().items():
        for name, nodes in definitions(tree).items():
            if name and (module, name) not in known and "/" not in module:
                continue
            for node in nodes:
                if not is_dataclass(node):
                    yield "", node
                    continue
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(part, ast.FunctionDef):
                        yield "" if part.name.startswith("__") else part.name, part


def unused() -> set[str]:
    """Give "module: Class.field" of each field of a dataclass that nothing reads, or only what nothing reads."""
    waiting = list(code())
    read: set[str] = set()
    while True:
        now = [node for name, node in waiting if not name or name in read]
        if not now:
            break
        waiting = [(name, node) for name, node in waiting if name and name not in read]
        for node in now:
            read |= read_in(node)
    return {
        f"{module}: {name}.{field}"
        for module, tree in trees().items()
        if module.startswith(FACTS)
        for name, nodes in definitions(tree).items()
        for node in nodes
        if is_dataclass(node) and isinstance(node, ast.ClassDef)
        for field in fields(node)
        if field not in read and f"{module}: {name}" not in SETTINGS
    }


def test_no_fact_is_parsed_and_dropped() -> None:
    """Whoever parses a new field has an item, a note, a comparison or the diagnosis use it."""
    left = {f"{one.rpartition('.')[0]}: {one.rpartition('.')[2]}" for one in unused()}
    awaiting = {f"{line.rpartition(': ')[0]}: {name}" for line in AWAITING for name in line.rpartition(": ")[2].split()}
    assert left == awaiting


def test_the_walk_follows_what_is_read() -> None:
    """A field that only a property reads is used where somebody reads the property."""
    tree = ast.parse("getattr(x, 'tp_size'); y.ids; z.kept = 1")
    assert read_in(tree) == {"tp_size", "ids"}
