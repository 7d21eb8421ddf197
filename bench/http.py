# ruff: noqa: A005  # the standard library has a module of this name; see _stand_aside
"""What does the HTTP API cost compared with bare routes of the same server, framework and driver?

    python bench/http.py [PART ...] [--quick] [--profile]

PART   submit status batch (http_parts.py); by default all. Each is kept under its name in
       results/http.json.
--quick    small sizes, to check that it runs; its figures mean nothing and are not kept
--profile  run the API's process under cProfile instead; print the functions with most own time
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _stand_aside() -> None:
    """Load the standard library's `http`, which a program in this folder wanted to import."""
    spec = PathFinder.find_spec("http", [path for path in sys.path if path != _HERE])
    assert spec
    assert spec.loader
    sys.modules["http"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


_HERE = __file__.rpartition("/")[0]
if __name__ == "http":
    _stand_aside()


async def _main(parts: list[str], *, quick: bool, profiled: bool) -> None:
    from http_parts import PARTS, profile
    from server import record_part, server

    lines = []
    async with server() as running:
        if profiled:
            await profile(running, parts, quick=quick)
            return
        for name in parts:
            print(f"{name}: {(PARTS[name].__doc__ or '').strip()}")
            found = await PARTS[name](running, quick=quick)
            for line in found.lines:
                print(f"  {line}")
            lines += found.lines
            if not quick:
                record_part("http", name, found.kept())
    print()
    for line in lines:
        print(line)


if __name__ == "__main__":
    import argparse

    import uvloop

    from http_parts import PARTS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--quick", "--smoke", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}: they are {', '.join(PARTS)}")
    uvloop.run(
        _main(arguments.parts or list(PARTS), quick=arguments.quick, profiled=arguments.profile)
    )
