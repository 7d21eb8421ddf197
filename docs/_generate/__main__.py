"""`cd docs && python -m _generate`: write the reference anew. `make docs` does it, too."""

from _generate.pages import write

write()
