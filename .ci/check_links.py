"""Check that links between the documents lead to a file, and to a heading in it, that exist."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SKIPPED = {".venv", ".git", "node_modules"}
FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Names that headings can be reached by, made as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        numbered = (f"{plain}-{n}" for n in range(1, 1000))
        found.add(plain if plain not in found else next(n for n in numbered if n not in found))
    return found


def broken(path: Path) -> list[str]:
    """Links of one document that lead nowhere. Other people's sites are not asked."""
    faults = []
    for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            faults.append(f"{path.relative_to(ROOT)}: {link}: there is no such file")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            faults.append(f"{path.relative_to(ROOT)}: {link}: there is no such heading")
    return faults


def main() -> None:
    documents = [path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.parts)]
    faults = [fault for path in sorted(documents) for fault in broken(path)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(documents)} documents, {len(faults)} broken links")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
