"""The size of the package in logical lines: statements of Python, lines of SQL.

python bench/size.py [COMMIT]     print a line per folder, of the working tree or of a commit

A statement counts once, on however many lines it stands. Docstrings, other text that stands alone,
comments and blank lines do not count.
"""

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/penstock")


def files(commit: str | None) -> Iterator[tuple[Path, str]]:
    """Path below the package, and text, of each source file."""
    if commit is None:
        for path in (ROOT / PACKAGE).rglob("*.*"):
            if path.suffix in {".py", ".sql"}:
                yield path.relative_to(ROOT / PACKAGE), path.read_text()
        return
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit, str(PACKAGE)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None and member.name.endswith((".py", ".sql")):
                yield Path(member.name).relative_to(PACKAGE), content.read().decode()


def statements(text: str) -> int:
    return sum(
        isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(text))
    )


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def sql_lines(text: str) -> int:
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("--") for line in lines)


def main() -> None:
    count: dict[str, Counter[str]] = {".py": Counter(), ".sql": Counter()}
    for path, text in files(sys.argv[1] if len(sys.argv) > 1 else None):
        folder = path.parts[0] if len(path.parts) > 1 else "."
        count[path.suffix][folder] += statements(text) if path.suffix == ".py" else sql_lines(text)
    for suffix, unit in ((".py", "statements of Python"), (".sql", "lines of SQL")):
        for folder, size in sorted(count[suffix].items()):
            print(f"{folder:12}{size:8,}")
        print(f"{'in all':12}{count[suffix].total():8,} {unit}\n")


if __name__ == "__main__":
    main()
