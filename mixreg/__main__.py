"""`python -m mixreg` is the command line."""

from mixreg.commands.main import main

main(prog_name="mixreg")
