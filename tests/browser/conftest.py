"""One JupyterLab and one Chromium for all tests in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from . import jupyter


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Return the folder where screenshots are kept: HOODIE_NB_SCREENSHOTS, or a temporary one."""
    folder = Path(os.environ.get("HOODIE_NB_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def program():
    """Return Chromium's path; without it the tests are skipped, but not in CI."""
    found = jupyter.chromium()
    if found is None:
        why = "Chromium is not there: apt-get install --no-install-recommends chromium (as root)"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return found


AXE = "axe-core-4.14.1"


@pytest.fixture(scope="session")
def axe():
    """Return the script of axe-core, which finds barriers in a page; npm fetches it once."""
    cache = Path(os.environ.get("HOODIE_NB_CACHE") or Path.home() / ".cache" / "hoodie_nb")
    folder = cache / "browser"
    packed = folder / f"{AXE}.tgz"
    if not packed.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not there, which fetches axe-core")
        folder.mkdir(parents=True, exist_ok=True)
        package = "@".join(AXE.rsplit("-", 1))
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, timeout=300)
    with tarfile.open(packed) as found:
        return found.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Return the folder whose files JupyterLab shows."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="session")
def address(tmp_path_factory, root, program):
    """Run JupyterLab; return its address."""
    folder = tmp_path_factory.mktemp("jupyter")
    with jupyter.server(folder, root) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def page(request, tmp_path, program, pictures):
    """Return a page of a fresh Chromium; an error in the page fails the test."""
    from playwright.sync_api import sync_playwright

    options = {"headless": True, "executable_path": program, "args": ["--no-sandbox"]}
    with sync_playwright() as playwright:
        window = {"viewport": {"width": 1280, "height": 1000}}
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "chromium", **options, **window
        )
        shown, errors = context.pages[0], []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.set_default_timeout(300_000)  # a last resort; see `jupyter.wait_for`
        yield shown
        shown.screenshot(path=pictures / f"{request.node.name}-end.png")
        seen = list(errors)  # ending a kernel cancels Lab's own requests to it, as errors
        shown.evaluate(jupyter.SHUT_DOWN)
        context.close()
    assert seen == []
