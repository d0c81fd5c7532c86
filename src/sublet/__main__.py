"""`python -m sublet` is `sublet`."""

from sublet.cli.main import main

main()
