"""Errors of Spark's tasks, translated into this library's errors.

| what a task met | the driver raises |
| --- | --- |
| InvalidInput, InvalidTable or InvalidConfig of ours | the same |
| a package that its Python lacks, another Python, none | InvalidConfig, with the cure |
| anything else | WriteFailed: a stream runs the batch again |

**Caveats**: Spark passes on text only, so the errors are recognized by their words.
"""

import re
import shlex
import sys
from typing import NoReturn

from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable, WriteFailed

_RAISED = re.compile(r"hoodie_nb\.errors\.(InvalidInput|InvalidTable|InvalidConfig): (.*)")
_NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")
_KINDS = {kind.__name__: kind for kind in (InvalidInput, InvalidTable, InvalidConfig)}
_WRONG_PYTHON = re.compile(
    r"No module named '[\w.]+'|Cannot run program \"[^\"]*python[^\"]*\""
    r"|Python in worker has different version: \S+ than that in driver: \d+\.\d+"
)


def raise_translated(error: Exception, handled: BaseException | None = None) -> NoReturn:
    """Raise the translated error; a Spark error that says no more than it is not its cause.

    Raises KeyboardInterrupt if the call failed while pyspark cleaned up after Ctrl-C; `handled` is
    what the caller was handling before it, and does not count.
    """
    before: BaseException | None = error
    while before is not None and before is not handled:
        if isinstance(before, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        before = before.__context__
    own = translated(error)
    raise own from (error if isinstance(own, WriteFailed) else None)


def translated(error: Exception) -> Exception:
    """Return the error that an operator raised in a task, else WriteFailed."""
    raised = _RAISED.search(str(error))
    if raised is not None:
        counted = " (as counted by one Spark task)" if raised[1] == "InvalidInput" else ""
        return _KINDS[raised[1]](raised[2] + counted)
    wrong = _WRONG_PYTHON.search(str(error))
    if wrong is not None:
        python = shlex.quote(sys.executable)
        return InvalidConfig(
            f"the Python of Spark's tasks cannot write: {wrong[0]}. Let them run a Python like the "
            f"driver's, with its packages: set PYSPARK_PYTHON={python} before the "
            "session starts; on a cluster, to the path of a Python that every worker has"
        )
    return WriteFailed(
        f"the Spark job failed and none of the batch was written: {first_cause(str(error))} "
        "(the full text is in the exception's cause and in the JVM's log)"
    )


def first_cause(text: str) -> str:
    """Return the line of a Python worker's traceback that names the error, else the JVM's own."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_ERROR.match(line)]
    java = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (named or java or lines or ["unknown"])[0][:300]
