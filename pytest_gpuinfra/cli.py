"""The command line `gpuinfra`: what is not a test run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from pytest_gpuinfra import __version__
from pytest_gpuinfra.visible import visible, visible_json

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.record.recording import Recording


class _Page(click.Path):
    """A file whose ending says its format."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).endswith((".md", ".html", ".htm")):
            self.fail(f"{value!r} ends in neither .md nor .html, which are what is written", param, ctx)
        return super().convert(value, param, ctx)


_PAGE = _Page()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuinfra")
def main() -> None:
    """
    Tools around `pytest --gpu-host=HOST`, which judges hosts.

    Hosts and what is expected of them stand in gpuinfra.toml.
    """


@main.command()
@click.option("--recording", is_flag=True, help="the schema of recordings instead")
@click.option("--markdown", is_flag=True, help="the inventory's reference for people: all tables and keys")
def schema(recording: bool, markdown: bool) -> None:
    """Print the inventory's JSON Schema, for editors and for looking up legal keys."""
    if recording and markdown:
        raise click.UsageError("--markdown is of the inventory; docs/recording.md describes recordings")
    if markdown:
        click.echo(_made_page("inventory.md"), nl=False)
        return
    if recording:
        from pytest_gpuinfra.record.model import recording_schema

        click.echo(json.dumps(recording_schema(), indent=2))
        return
    from pytest_gpuinfra.inventory.inventory import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command()
@click.option("--fixtures", is_flag=True, help="all fixtures instead: what each gives, and what makes it ERROR")
def checks(fixtures: bool) -> None:
    """Print the catalogue of all checks as Markdown: requirement, level, expectation, facts, what makes it ERROR."""
    click.echo(_made_page("fixtures.md" if fixtures else "checks.md"), nl=False)


def _made_page(name: str) -> str:
    """Read one of docs/, which is made of the code: inside the installed package, or beside it in a checkout."""
    from pathlib import Path

    package = Path(__file__).resolve().parent
    folder = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"
    return (folder / name).read_text(encoding="utf-8")


@main.command()
@click.argument("file", type=click.Path(), default="gpuinfra.toml")
def check(file: str) -> None:
    """Check an inventory without touching any host; exit status 2 if it is wrong."""
    from pathlib import Path

    from pytest_gpuinfra.errors import InventoryError
    from pytest_gpuinfra.inventory.inventory import read_inventory

    try:
        inventory = read_inventory(Path(file))
    except InventoryError as error:
        raise click.UsageError(visible(str(error))) from None
    if not inventory.hosts:
        click.echo(f"{file}: names no host" + ("" if inventory.defaults or inventory.groups else ", and is empty"))
    faults = [f"hosts.{alias}: {fault}" for alias, host in inventory.hosts.items() for fault in host.unjudgeable()]
    if faults:
        raise click.UsageError(visible("\n  ".join([f"{file}:", *faults])))
    for alias, host in inventory.hosts.items():
        devices = sum(len(row.pci) for row in host.expect.devices)
        click.echo(f"{alias}: {devices} devices expected" if devices else f"{alias}: no device expected")
        for warning in host.expect.warnings():
            click.echo(f"  warning: {warning}")


def _recording(path: str) -> Recording:
    """Read a recording, or the newest of each host in a folder of them."""
    from pathlib import Path

    from pytest_gpuinfra.errors import RecordingError
    from pytest_gpuinfra.record.compare import join
    from pytest_gpuinfra.record.recording import read_recording

    try:
        if not Path(path).is_dir():
            return read_recording(Path(path))
        files = sorted(Path(path).glob("*.json"))
        if not files:
            raise RecordingError(f"{path}: the folder holds no recording (*.json)")
        return join(read_recording(file) for file in files)
    except RecordingError as error:
        raise click.UsageError(visible(str(error))) from None


def _only(recording: Recording, aliases: tuple[str, ...], path: str) -> Recording:
    """Give some hosts of a recording."""
    from dataclasses import replace

    missing = [alias for alias in aliases if alias not in recording.hosts]
    if missing:
        raise click.UsageError(f"{path} holds no host {missing[0]!r}; it holds {', '.join(list(recording.hosts)[:20])}")
    return replace(
        recording,
        hosts={alias: recording.hosts[alias] for alias in aliases},
        results=[result for result in recording.results if result["host"] in aliases],
    )


@main.command()
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "--allow",
    multiple=True,
    metavar="PATTERN",
    help="a change that was meant; repeats. A glob over names ('iommu/*', 'node-a:driver/version'), with the new value "
    "behind an equals sign if only that one was meant ('command line/iommu=pt')",
)
@click.option("--noise", type=click.FloatRange(0, 10), default=0.1, show_default=True, help="share of a number")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "html", "json"]),
    default="terminal",
    show_default=True,
)
@click.option(
    "-o", "--output", type=click.Path(), help="write there instead (format by its ending: .md, .html, .json, .txt)"
)
@click.pass_context
def compare(
    context: click.Context, before: str, after: str, allow: tuple[str, ...], noise: float, form: str, output: str | None
) -> None:
    """
    Tell what changed between two recordings, or folders of them; exit status 1 on a regression.

    A regression is any change that --allow does not name and that is not for the better.
    """
    from pathlib import Path

    from pytest_gpuinfra.errors import GpuInfraError
    from pytest_gpuinfra.record import compare as core
    from pytest_gpuinfra.report import compare_text

    endings = {".md": "markdown", ".html": "html", ".json": "json", ".txt": "terminal"}
    if output and Path(output).suffix not in endings and form == "terminal":
        raise click.UsageError(f"{output!r} ends in none of {', '.join(endings)}, which are what is written")
    try:
        found = core.compare(_recording(before), _recording(after), allow=allow, noise=noise)
    except GpuInfraError as error:
        raise click.UsageError(visible(str(error))) from None
    form = endings.get(Path(output).suffix, form) if output else form
    writers = {"markdown": compare_text.as_markdown, "html": compare_text.as_html, "json": compare_text.as_json}
    if form == "terminal":
        from pytest_gpuinfra.report.escaped import VisibleConsole

        stream = open(output, "w", encoding="utf-8") if output else None  # noqa: SIM115
        compare_text.show(found, VisibleConsole(file=stream, highlight=False))
    elif output:
        Path(output).write_text(writers[form](found), encoding="utf-8")
    else:
        click.echo(writers[form](found), nl=False)
    context.exit(1 if found.regressions else 0)


@main.command()
@click.argument("recording", type=click.Path())
@click.option(
    "-o", "--output", multiple=True, type=_PAGE, help="FILE.md or FILE.html; repeats (default: Markdown, here)"
)
@click.option("--host", "hosts", multiple=True, metavar="ALIAS", help="only this host of the recording; repeats")
def report(recording: str, output: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    """Write a recording on one page: the verdict on each host, why, what to do, numbers."""
    import hashlib
    from pathlib import Path

    from pytest_gpuinfra.errors import RecordingError
    from pytest_gpuinfra.input_file import read_bytes
    from pytest_gpuinfra.record.recording import MOST_BYTES
    from pytest_gpuinfra.report.page import make_page
    from pytest_gpuinfra.report.page_text import page_markdown, write_page

    path = Path(recording)
    whole = _recording(recording)
    digest = "" if path.is_dir() else hashlib.sha256(read_bytes(path, RecordingError, most=MOST_BYTES)).hexdigest()
    if hosts:
        whole = _only(whole, hosts, recording)
    page = make_page(whole, path.name, digest)
    for file in output:
        write_page(Path(file), page)
    if not output:
        click.echo(page_markdown(page), nl=False)


@main.command()
@click.option(
    "--gpu-host", "name", required=True, metavar="HOST", help="as pytest's --gpu-host; one that is known good"
)
@click.option("--alias", metavar="NAME", help="what the host is to be called (default: made of HOST)")
@click.option("--gpu-sudo", "sudo", is_flag=True, help="be root there through `sudo -n`")
@click.option("--gpu-sudo-read", "read", is_flag=True, help="only read what root reads, as pytest's --gpu-sudo-read")
@click.option("--gpu-ssh-config", "ssh_config", metavar="FILE", help="config file for ssh(1)")
@click.option("-o", "--output", type=click.Path(), help="write there (default: here); a file that exists is kept")
def init(name: str, alias: str | None, sudo: bool, read: bool, ssh_config: str | None, output: str | None) -> None:
    """
    Write a first inventory from a host that is known to be good, or from a recording (replay:FILE).

    It is minimal, commented, and true on that host. A recording of a run at level active gives bandwidths, too.
    """
    from pathlib import Path

    from pytest_gpuinfra.errors import GpuInfraError
    from pytest_gpuinfra.first_inventory import UNITS, first_inventory
    from pytest_gpuinfra.inventory.inventory import Inventory
    from pytest_gpuinfra.options import Settings
    from pytest_gpuinfra.record.recording import RecordedHost
    from pytest_gpuinfra.session.select import select_hosts
    from pytest_gpuinfra.session.session import Session

    if output and Path(output).exists():
        raise click.UsageError(f"{output} exists; name another file, or take it away first")
    try:
        selected = select_hosts([name], Inventory(), "")
        settings = Settings(level="passive", sudo="read" if read else sudo, ssh_config=ssh_config)
        session = Session(settings, {host.alias: host for host in selected})
        try:
            session.captures.take_all([UNITS])
            texts = [
                first_inventory(
                    alias if alias and len(selected) == 1 else host.alias,
                    (host.selected.destination or "local")
                    if host.selected.way != "replay"
                    else _declared_address(host),
                    RecordedHost(
                        host.selected.spec.model_dump(mode="json", exclude_defaults=True, exclude={"expect"}),
                        host.capture,
                        host.gathered(),
                    ),
                )
                for host in session.hosts.values()
            ]
        finally:
            session.close()
    except GpuInfraError as error:
        raise click.UsageError(visible(str(error))) from None
    text = visible_json("\n".join(texts))
    if output:
        Path(output).write_text(text, encoding="utf-8")
        click.echo(f"{output}: pytest --gpu-host={alias or selected[0].alias} --gpu-inventory={output} judges by it")
    else:
        click.echo(text, nl=False)


def _declared_address(host: GpuHost) -> str | None:
    return host.selected.spec.address


@main.command()
@click.option("--user", required=True, metavar="NAME", help="the account that logs in on the targets")
@click.option("--group", metavar="NAME", help="its primary group there (default: of the same name)")
def sudoers(user: str, group: str | None) -> None:
    """
    Print a sudoers file for pytest's --gpu-sudo-read; nothing is installed.

    With it the account may read every file and the kernel's log of a target. It stays itself: it is not root, and
    writes nothing that it cannot write without. docs/security.md has what is then still not seen.
    """
    from pytest_gpuinfra.connection.rights import sudoers_text

    try:
        click.echo(sudoers_text(user, group or user), nl=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@main.command()
@click.argument("folder", type=click.Path())
@click.option(
    "--expect-hosts",
    multiple=True,
    metavar="HOSTLIST",
    help="nodes that must have reported, 'node[01-64],gpu-a'; repeats. One that did not is an ERROR",
)
@click.option(
    "--expect-file", multiple=True, type=click.Path(), help="the same from a file, a hostlist a line; repeats"
)
@click.option("--gpu-inventory", "inventory", type=click.Path(), help="expect all hosts of this inventory")
@click.option(
    "--controller",
    multiple=True,
    metavar="PLACE",
    help="folder or file of FOLDER, a glob, whose run judged several hosts from outside ('share-*'); repeats. Every "
    "other place speaks for the host that it is named for, and for no other",
)
@click.option("-o", "--output", multiple=True, type=_PAGE, help="one page: FILE.md or FILE.html; repeats")
@click.option("--alluredir", type=click.Path(), help="one set of Allure results; a new or empty folder")
@click.option("--junitxml", type=click.Path(), help="one JUnit file")
@click.option("--recording", type=click.Path(), help="one recording of all nodes")
@click.option(
    "--outliers",
    type=click.Choice(["report", "fail"]),
    default="report",
    show_default=True,
    help="what a node that is slower or hotter than its group is worth: a line in the report, or status 1",
)
@click.option(
    "--unknown",
    type=click.Choice(["error", "fail", "allow"]),
    default="error",
    show_default=True,
    help="as pytest's --gpu-unknown: what could not be observed ends with 6, 1, or 0",
)
@click.pass_context
def merge(context: click.Context, /, folder: str, **options: Any) -> None:
    """
    Make one result of many runs: those that the nodes of a cluster wrote into FOLDER/NODE/, each about itself.

    Exit status as pytest's: 0 all may take traffic, 1 something is wrong, 6 something could not be judged.
    """
    from pytest_gpuinfra.errors import GpuInfraError
    from pytest_gpuinfra.merge.command import MergeOptions, run_merge

    try:
        context.exit(run_merge(folder, MergeOptions(**options)))
    except GpuInfraError as error:
        raise click.UsageError(visible(str(error))) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
