"""What Allure shows of an item about a host: where it is filed, its title, its evidence."""

from __future__ import annotations

from collections.abc import Generator

import allure
import pytest

from pytest_gpuinfra.session import OBSERVED, target_of


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Label an item and attach what its fixtures read."""
    _label(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Label an item whose fixtures could not observe; it never gets as far as its call."""
    try:
        return (yield)
    except BaseException:
        _label(item)
        raise


def _label(item: pytest.Item) -> None:
    target = target_of(item)
    if target is None:
        return
    doc = (getattr(item, "function", item).__doc__ or item.name).strip()
    allure.dynamic.parent_suite(target.host)
    allure.dynamic.suite(item.path.parent.name)
    allure.dynamic.sub_suite(item.path.stem)
    allure.dynamic.title(f"{doc.splitlines()[0]} [{target.id}]")
    allure.dynamic.label("target", target.host)
    for piece in item.stash.get(OBSERVED, []):
        allure.attach(piece.text, piece.name, allure.attachment_type.TEXT)
