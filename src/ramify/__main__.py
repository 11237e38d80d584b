"""`python -m ramify` is the `ramify` command."""

from ramify.cli import main

main()
