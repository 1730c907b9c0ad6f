"""``python -m fedunseen``: the command."""

from fedunseen.cli.main import main

main()
