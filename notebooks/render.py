"""Execute the notebooks and save their outputs for readers without a kernel.

    python notebooks/render.py [NAME.ipynb ...]        # all of them, if none is named

Each runs from its first cell to its last in a separate kernel, in this folder. Outputs are saved,
except those that differ from run to run or show nothing: widgets (their picture or text is saved),
execution timings, the kernel's exact version. If a cell fails, the notebook is not changed.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def render(path: Path) -> None:
    """Execute one notebook and write it back, cleaned."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    clean(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def clean(notebook: nbformat.NotebookNode) -> None:
    """Remove everything that differs from run to run, in place."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        kept = ("tags", "slideshow", "jupyter")
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in kept})
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("metadata", {}).pop("execution", None)
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join the parts of a printed text, which the kernel sends in one message or in several."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" and output.get("name") == found[-1].get("name"):
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main(names: list[str]) -> None:
    """Render the named notebooks, or all."""
    paths = [HERE / Path(name).name for name in names] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        began = time.monotonic()
        render(path)
        print(f"{path.name}: {time.monotonic() - began:.1f} s, {path.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
