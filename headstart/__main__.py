"""`python -m headstart` is the `headstart` command."""

from headstart.cli.main import main

if __name__ == "__main__":
    main()
