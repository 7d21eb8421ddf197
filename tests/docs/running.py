"""Runs a page as its reader would: an empty folder, a shell, a database, in the page's order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import psycopg
import yaml

from docs.pages import ROOT, Block, Ending, Page, Wrong
from docs.shims import write_shims
from penstock.client.config.toml import load
from support.signing import SECRET

BLOCK_SECONDS = 90
READY_SECONDS = 60
END_SECONDS = 40
LOOK_SECONDS = 0.02
# Ports that pages name; each page gets free ones in their place.
PORTS = ("8484", "11434", "8000", "5000", "3000", "9000", "6432")
# Languages that say something to people only.
PROSE = {"text", "mermaid"}

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMES = re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds?|minutes?)\b|\b20\d\d-\d\d-\d\dT[\d:.+Z]+")
_WORKERS = re.compile(r"\b[\w.]+-\d{2,}\b")


class Background:
    """A program that goes on beside the blocks behind it."""

    def __init__(self, block: Block, popen: "subprocess.Popen[bytes]", log: Path) -> None:
        self.block = block
        self.popen = popen
        self.log = log
        self.was_ended = False

    @property
    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str | None, where: str) -> None:
        """Return when it has printed a text, or any line."""
        deadline = time.monotonic() + READY_SECONDS
        while (text or "\n") not in self.printed:
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise Wrong(
                    f"{where}: it is not ready, {text or 'a line'!r} was not printed:\n"
                    f"{self.printed}"
                )
            time.sleep(LOOK_SECONDS)

    def end(self, where: str, *, kill: bool = False) -> None:
        ended_itself = not kill and not self.was_ended and self.popen.poll() is not None
        self.was_ended = True
        if ended_itself:
            raise Wrong(f"{where}: it ended by itself, {self.popen.returncode}:\n{self.printed}")
        if kill:
            # The page may have killed it itself; what it has started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        elif self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGTERM)
        try:
            self.popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
            raise Wrong(f"{where}: it does not end when it is told to:\n{self.printed}") from None


class Reader:
    """Does what a page says, step by step; a step that fails raises Wrong with its line."""

    def __init__(self, page: Page, folder: Path, *dsns: str) -> None:
        self.page = page
        self.dsn = dsns[0] if dsns else None
        self._dsns = dsns
        self.home = folder
        self.folder = folder / "folder"
        self.folder.mkdir()
        self.ports = {port: str(_free_port()) for port in PORTS}
        self.background: dict[str, Background] = {}
        self.files: dict[str, int] = {}
        self.printed = ""
        self._repl: subprocess.Popen[str] | None = None
        self._state = folder / "state.sh"
        self._state.write_text(f"cd '{self.folder}'\n")
        self._env = self._environment(write_shims(folder / "bin", self.ports))

    def _environment(self, shims: Path) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYTEST_"))}
        programs = [str(shims), str(Path(sys.executable).parent), os.environ["PATH"]]
        # Neither the width of a terminal nor its colours are those of whoever runs the tests.
        env = {"PATH": ":".join(programs), "HOME": str(self.home), "NO_COLOR": "1"}
        env |= {"COLUMNS": "120", "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
        env["DOCS_ROOT"] = str(ROOT)  # for checks that use something of the tests
        if self._dsns:
            names = ("PENSTOCK_DSN", "SECOND_DSN")
            env |= dict(zip(names, self._dsns, strict=False)) | {"PENSTOCK_SECRET": SECRET}
        return kept | env

    def run(self) -> None:
        try:
            for step in self.page.steps:
                if isinstance(step, Ending):
                    self._end(step)
                else:
                    self._block(step)
            for name in reversed(self.background):
                one = self.background[name]
                if not one.was_ended:
                    one.end(self._at(one.block))
            self._refuse_unused()
        finally:
            self.close()

    def close(self) -> None:
        """Whatever happened: nothing of the page goes on, an embedded database neither."""
        for one in reversed(self.background.values()):
            with suppress(Wrong):
                one.end("", kill=one.was_ended)
        if self._repl is not None:
            try:
                self._repl.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:  # a block that does not come to its end
                self._repl.kill()
                self._repl.communicate()

    def _at(self, step: Block | Ending) -> str:
        return f"{self.page.name}:{step.line}"

    def _end(self, step: Ending) -> None:
        if step.name not in self.background:
            raise Wrong(f"{self._at(step)}: nothing called {step.name} runs in the background")
        self.background[step.name].end(self._at(step), kill=step.kill)

    def _block(self, block: Block) -> None:
        if block.not_run is not None:
            if len(block.not_run.split()) < 2:  # one word is no reason
                raise Wrong(f"{self._at(block)}: why can it not run?")
            return
        if block.run_by is not None:
            test = ROOT / block.run_by
            if not test.is_file() or self.page.path.name not in test.read_text(encoding="utf-8"):
                raise Wrong(f"{self._at(block)}: {block.run_by} does not run it")
            return
        code = self._replaced(block.code, block)
        if block.output_of is not None:
            self._compare(block, code)
        elif block.file is not None:
            self._write(block, code)
        else:
            self._run(block, code)

    def _replaced(self, text: str, block: Block) -> str:
        for old, new in block.replace:
            found = self.background.get(new.removeprefix("$"))
            text = text.replace(old, str(found.popen.pid) if found else new)
        for port, free in self.ports.items():
            text = re.sub(rf"(?<![\w.-]){port}\b", free, text)
        return text

    def _write(self, block: Block, code: str) -> None:
        assert block.file
        name = block.file["name"]
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if block.file["added"] else ""
        path.write_text(before + code)
        self.files.setdefault(name, block.line)
        if path.suffix == ".py":
            compile(path.read_text(), name, "exec")
        elif path.suffix == ".toml":
            tomllib.loads(code)

    def _refuse_unused(self) -> None:
        """A file that no block uses has not been run at all."""
        bodies = [
            block.code.partition("\n")[2] if block.file else block.code
            for block in self.page.blocks
        ]
        for name, line in self.files.items():
            used = re.compile(rf"\b{re.escape(Path(name).stem)}\b")
            if not any(used.search(body) for body in bodies):
                raise Wrong(f"{self.page.name}:{line}: no block of the page uses {name}")

    def _run(self, block: Block, code: str) -> None:
        match block.language:
            case "sh" | "bash" if block.background:
                self._start(block, code)
            case "sh" | "bash":
                self._shell(block, code)
            case "python":
                self._python(block, code)
            case "sql":
                self._sql(block, code)
            case "toml":
                self._toml(block, code)
            case "json":
                json.loads(code)
            case "yaml":
                list(yaml.safe_load_all(code))
            case language if language not in PROSE:
                raise Wrong(
                    f"{self._at(block)}: {language or 'a block without a language'} cannot be run;"
                    " say so in a comment, with the reason"
                )

    def _script(self, code: str) -> list[str]:
        """What a block exports, and where it goes, holds for the blocks behind it."""
        keep = f"{{ export -p; echo \"cd '$PWD'\"; }} > '{self._state}'"
        return ["bash", "-c", f". '{self._state}'\nset -eo pipefail\n{code}\n{keep}"]

    def _start(self, block: Block, code: str) -> None:
        assert block.background
        log = self.home / f"{block.background}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                ["bash", "-c", f". '{self._state}'\n{_as_last(code)}"],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self.background[block.background] = Background(block, popen, log)
        self.background[block.background].wait_for(block.until, self._at(block))

    def _shell(self, block: Block, code: str) -> None:
        try:
            done = subprocess.run(
                self._script(code),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=BLOCK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            raise Wrong(f"{self._at(block)}: not over in {BLOCK_SECONDS} s:\n{said}") from None
        self._judge(block, done.returncode, done.stdout.decode(errors="replace"))

    def _judge(self, block: Block, code: int, printed: str) -> None:
        self.printed = printed
        if code != block.exit:
            beside = "".join(
                f"\n--- {name} printed:\n{one.printed}" for name, one in self.background.items()
            )
            raise Wrong(f"{self._at(block)}: it ended with {code}:\n{printed}{beside}")

    def _python(self, block: Block, code: str) -> None:
        if self._repl is None:
            self._repl = subprocess.Popen(
                ["bash", "-c", f". '{self._state}'\nexec python '{ROOT}/tests/docs/repl.py'"],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._repl.stdin
        assert self._repl.stdout
        # Line numbers of a traceback are those of the document.
        asked = {"code": "\n" * block.line + code, "name": self.page.name}
        self._repl.stdin.write(json.dumps(asked) + "\n")
        self._repl.stdin.flush()
        limit = threading.Timer(BLOCK_SECONDS, self._repl.kill)
        limit.start()
        line = self._repl.stdout.readline()
        limit.cancel()
        if not line:
            raise Wrong(f"{self._at(block)}: it ended Python, or was not over in {BLOCK_SECONDS} s")
        answer = json.loads(line)
        self._judge(block, answer["code"], answer["printed"])

    def _sql(self, block: Block, code: str) -> None:
        if self.dsn is None:
            raise Wrong(f"{self._at(block)}: a page that is embedded has no address for SQL")
        lines = []
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                found = conn.execute(code.encode())
                while found.nextset():
                    pass
                if found.description is not None:
                    lines = [[one.name for one in found.description], *found.fetchall()]
        except psycopg.Error as error:
            raise Wrong(f"{self._at(block)}: {error}") from error
        self.printed = "\n".join(" | ".join(map(str, line)) for line in lines)

    def _toml(self, block: Block, code: str) -> None:
        """A piece without a name: an app could have it as it is."""
        path = self.home / f"line_{block.line}" / "penstock.toml"
        path.parent.mkdir()
        path.write_text(re.sub(r'"\$\w+"', '"http://127.0.0.1:9"', code))
        try:
            load(path)
        except Exception as error:
            raise Wrong(f"{self._at(block)}: {error}") from error

    def _compare(self, block: Block, code: str) -> None:
        wanted = re.compile(r".*?".join(map(re.escape, _plain(code).split("…"))), re.DOTALL)
        name = block.output_of
        if name and name not in self.background:
            raise Wrong(f"{self._at(block)}: nothing called {name} runs in the background")
        deadline = time.monotonic() + READY_SECONDS
        while True:
            printed = self.background[name].printed if name else self.printed
            if wanted.search(_plain(printed)):
                return
            if not name or time.monotonic() > deadline:
                raise Wrong(f"{self._at(block)}: this was not printed, but:\n{printed}")
            time.sleep(LOOK_SECONDS)


def _as_last(code: str) -> str:
    """A program in the last line takes the place of the shell: its number is that of the block."""
    before, _, last = code.strip().rpartition("\n")
    plain = re.fullmatch(r"[\w./'=@: -]+", last) and not before.endswith("\\")
    return f"{before}\nexec {last}" if plain and not last.startswith("exec ") else code


def _plain(text: str) -> str:
    """What may differ from one run to the next, and the width of columns, left out."""
    text = _TIMES.sub("TIME", _IDS.sub("ID", text))
    return " ".join(_WORKERS.sub("WORKER", text).split())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
