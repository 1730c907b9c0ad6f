"""Run the tutorials and keep what they show: `make notebooks`. A test runs them in the same way and
compares.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

# What a bar left on its line until it shows the cursor again, what erased it, and the line in place
# of one.
BAR = re.compile(r"[^\n]*\x1b\[\?25h|\x1b\[2K|^looking at the data \.\.\.\n", re.MULTILINE)

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def executed(paths: Sequence[Path]) -> Iterator[tuple[Path, nbformat.NotebookNode]]:
    """Run notebooks, each in an empty folder and from no variables, and yield them with what they
    show.

    One kernel serves all of them, because it takes seconds to import what they need.

    Raises:
        CellExecutionError: a cell fails.
    """
    kernel = KernelManager(kernel_name="python3", transport="ipc")
    # where the command `fedunseen` is
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        kernel.start_kernel(extra_arguments=["--log-level=ERROR"], env=os.environ | {"PATH": path})
        try:
            for path in paths:
                notebook = nbformat.read(path, as_version=4)
                Path(folder, path.stem).mkdir()
                begin = f"%reset -f\n%cd -q {folder}/{path.stem}"
                notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
                client = NotebookClient(
                    notebook, km=kernel, timeout=300, record_timing=False, coalesce_streams=True
                )
                client.execute()
                del notebook.cells[0]
                yield path, tidied(notebook)
        finally:
            kernel.shutdown_kernel(now=True)


def tidied(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what differs from run to run: counts, addresses in memory, what libraries say to
    standard error, bars, which only a machine that takes seconds draws.
    """
    notebook.metadata = nbformat.from_dict(KERNEL)
    for place, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{place}", nbformat.from_dict({})
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "text" in output:
                output.text = BAR.sub("", output.text)
            if "image/png" in output.get("data", {}):
                picture = {"image/png": output.data["image/png"]}
                output.update({"output_type": "display_data", "data": picture, "metadata": {}})
                output.pop("execution_count", None)
    return notebook


if __name__ == "__main__":
    for path, notebook in executed([Path(name) for name in sys.argv[1:]]):
        nbformat.write(notebook, path)
        print(path)
