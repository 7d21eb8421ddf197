"""`python -m penstock` is the same program as `penstock`."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
