"""A separate JupyterLab, and a Chromium to test it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import nbformat

# Lab's own pop-ups would cover the widgets
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
FRAMES = """() => {
  const seen = window.hoodie = {heights: [], frames: 0, changes: 0};
  const look = () => {
    const frame = document.querySelector('.hoodie-frame');
    if (frame) {
      const height = Math.round(frame.getBoundingClientRect().height);
      if (seen.heights.at(-1) !== height) seen.heights.push(height);
      seen.frames += 1;
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
  new MutationObserver(() => { seen.changes += 1; })
    .observe(document.body, {subtree: true, childList: true});
}"""
SHUT_DOWN = """() => window.jupyterapp?.serviceManager.sessions.shutdownAll().catch(() => {})"""
READY = """() => {
  const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel?.status === 'idle';
}"""
ALL_RUN = """() => {
  const cells = [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter((cell) => cell.type === 'code');
  const failed = cells.some((cell) => [...Array(cell.outputs.length).keys()]
    .some((at) => cell.outputs.get(at).type === 'error'));
  return failed || cells.every((cell) => cell.executionState === 'idle' && cell.executionCount);
}"""
PROGRESS = """() => {
  const cells = [...(window.jupyterapp?.shell.currentWidget?.content?.model?.cells ?? [])];
  const done = cells.map((cell) => `${cell.executionCount ?? ''}:${cell.outputs?.length ?? ''}`);
  return [...done, window.hoodie?.changes ?? 0].join(' ');
}"""
STALLED_MS = 120_000
ANSWER = """([selector, answer]) => new Promise((resolve) => {
  const began = performance.now();
  const look = () => {
    const found = [...document.querySelectorAll('.hoodie-frame text')]
      .some((text) => text.textContent.match(answer));
    const passed = performance.now() - began;
    if (found || passed > 300000) resolve(passed); else requestAnimationFrame(look);
  };
  document.querySelector(selector).click();
  look();
})"""


def chromium() -> str | None:
    """Return the path of Debian's Chromium, installed if that is allowed; else None."""
    if shutil.which("chromium") is None and shutil.which("apt-get") and os.geteuid() == 0:
        update = ["apt-get", "update", "-qq"]
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for command in (update, install):
            subprocess.run(
                command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, **quiet
            )
    return shutil.which("chromium")


def notebook(folder: Path, name: str, *cells: str) -> Path:
    """Write a notebook of code cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(t.strip()) for t in cells])
    made.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = folder / name
    nbformat.write(made, path)
    return path


def blank(path: Path, folder: Path) -> Path:
    """Copy a notebook without its outputs, so that all outputs are new."""
    made = nbformat.read(path, as_version=4)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(made, folder / path.name)
    return folder / path.name


@contextmanager
def server(folder: Path, root: Path, workspace: Path | None = None) -> Iterator[str]:
    """Run JupyterLab over the files in `root`, laid out as `workspace`, and give its address."""
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    own = {f"JUPYTER_{name}": str(folder / name.lower()) for name in names}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipy")}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "MPLCONFIGDIR": str(folder)}
    for name, values in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0", "--IdentityProvider.token="]
    options += ["--allow-root", "--expose-app-in-browser", f"--ServerApp.root_dir={root}"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    environment = {**os.environ, **own}
    if workspace is not None:
        imports = [sys.executable, "-m", "jupyter", "lab", "workspaces", "import", str(workspace)]
        subprocess.run(imports, env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, cwd=root
    )
    try:
        yield _address(process, folder / "server.log")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a kernel ends by itself without its parent
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address once the server answers; its later output goes to a file."""
    address = ""
    for line in process.stderr:
        found = re.search(r"http://127\.0\.0\.1:\d+/lab", line)
        address = found[0] if found else address
        if "Control-C" in line:
            break
    assert address, "JupyterLab has ended without printing its address"

    def keep() -> None:  # its kernels hold the pipe, too: closing it would wait for them
        with log.open("w") as kept, process.stderr:
            kept.writelines(process.stderr)

    threading.Thread(target=keep, daemon=True).start()
    while not _accepts(urlsplit(address)):  # it prints its address before it listens
        assert process.poll() is None, "JupyterLab has ended without listening"
        time.sleep(0.05)
    return address


def _accepts(address: SplitResult) -> bool:
    try:
        socket.create_connection((address.hostname, address.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def wait_for(page: object, wait: Callable[..., object], what: str) -> None:
    """Wait as `wait(what)` does, for as long as cells end or the page changes.

    So a busy machine takes longer, and only a notebook in which nothing happens any more fails.
    """
    from playwright.sync_api import TimeoutError

    before = None
    while True:
        try:
            wait(what, timeout=STALLED_MS)
            return
        except TimeoutError:
            now = page.evaluate(PROGRESS)
            if now == before:
                raise
            before = now


def picture(frame: object, path: Path) -> None:
    """Keep a picture of a widget, also of one whose frame is drawn anew meanwhile."""
    from playwright.sync_api import Error

    for attempts_left in reversed(range(20)):
        try:
            frame.scroll_into_view_if_needed()
            frame.screenshot(path=path)
            return
        except Error as error:
            if "not attached" not in str(error) or not attempts_left:
                raise


def two_seconds_ms() -> float:
    """Return two seconds in ms, more if the machine has more work than processors."""
    return 2000 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def answered_ms(page: object, button: str, answer: str) -> float:
    """Click a button, and return how long it took until a picture's text matched `answer`."""
    return page.evaluate(ANSWER, [button, answer])


def open_and_run(page: object, address: str, path: Path) -> None:
    """Open a notebook and choose Run > Run All Cells, as a reader would."""
    page.goto(f"{address}/workspaces/{path.stem}/tree/{path.name}")  # one without other tabs
    page.wait_for_function(READY)
    page.evaluate(FRAMES)
    page.click("li.lm-MenuBar-item:has-text('Run')")
    page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')


def theme(page: object, name: str) -> None:
    """Let Lab change its theme, and wait until it has."""
    page.evaluate(
        "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
    )
    light = "false" if "Dark" in name else "true"
    page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
