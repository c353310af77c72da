"""`python -m mixreg` is the command line."""

from mixreg.cli import main

main(prog_name="mixreg")
