from colossalai_patch.cli import main

main(prog_name="python -m colossalai_patch")
