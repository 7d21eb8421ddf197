"""Runs the Python blocks of one page, in one namespace and one event loop, as they come.

A line of JSON in is a block; a line of JSON out is what it printed and whether it went well.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import traceback
from typing import Any


def main() -> None:
    answers = sys.stdout
    namespace: dict[str, Any] = {"__name__": "__page__"}
    sys.path.insert(0, "")
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = _run(runner, namespace, asked["code"], asked["name"])
            print(json.dumps({"code": code, "printed": printed.getvalue()}), file=answers)
            answers.flush()


def _run(runner: asyncio.Runner, namespace: dict[str, Any], source: str, name: str) -> int:
    try:
        code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        found = eval(code, namespace)  # noqa: S307  # our own documents
        if inspect.iscoroutine(found):
            runner.run(found)
    except BaseException:  # noqa: BLE001  # whatever it is, the page is told
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
