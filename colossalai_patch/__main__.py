"""``python -m colossalai_patch``: the command line, where its script is not on the path."""

from colossalai_patch.cli import main

main(prog_name="python -m colossalai_patch")
