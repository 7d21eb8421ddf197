"""How near is a whole worker to what Postgres and Python themselves can do?

    python bench/worker.py [PART ...] [--quick] [--profile]

PART   throughput accounts backlog burst (throughput.py), pickup, submit, waiting, kill; by
       default all. Each is kept under its name in results/worker.json.
--quick    small sizes, to check that it runs; its figures mean nothing and are not kept
--profile  run one worker process under cProfile instead; print the functions with most own time
"""

import argparse
from collections.abc import Awaitable, Callable, Sequence

import uvloop

from kill import kill
from pickup import pickup
from report import Found, Line
from server import record_part, server
from submit import submit
from throughput import accounts, backlog, burst, profile, throughput
from waiting import waiting

PARTS: dict[str, Callable[..., Awaitable[Found]]] = {
    part.__name__: part
    for part in (throughput, accounts, backlog, burst, pickup, submit, waiting, kill)
}


async def main(parts: Sequence[str], *, quick: bool, profiled: bool) -> None:
    lines: list[Line] = []
    async with server() as running:
        if profiled:
            await profile(running, quick=quick)
            return
        for name in parts:
            print(f"{name}: {(PARTS[name].__doc__ or '').strip()}")
            found = await PARTS[name](running, quick=quick)
            for line in found.lines:
                print(f"  {line}")
            lines += found.lines
            if not quick:
                record_part("worker", name, found.kept())
    print()
    for line in lines:
        print(line)


if __name__ == "__main__":
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
        main(arguments.parts or list(PARTS), quick=arguments.quick, profiled=arguments.profile)
    )
