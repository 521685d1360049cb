"""``convert``: writes a checkpoint in another form."""

import re

import click

from colossalai_patch.cli.command import Command, Trouble, json_option, prefix_option
from colossalai_patch.cli.showing import ProgressBar, print_json

SUFFIXES_OF_A_FILE = (".bin", ".pt", ".pth", ".safetensors")
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(text: str) -> int:
    """The number of bytes that a text such as 2GB tells.

    Raises:
        click.BadParameter: if it tells none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]+)", text.upper())
    if match is None or match[2] not in UNITS or float(match[1]) == 0:
        raise click.BadParameter(f"{text!r} is no size, such as 500MB, 2GB or 1.5GiB")
    return int(float(match[1]) * UNITS[match[2]])


@click.command(cls=Command, short_help="Write a checkpoint in another form.")
@click.argument("paths", metavar="SRC DST", nargs=-1, type=click.Path())
@click.option("--from-native", type=click.Path(), help="Take this file of torch.save(optimizer.state_dict()) as SRC.")
@click.option("--to-native", type=click.Path(), help="Write such a file as DST.")
@click.option("--format", "name", type=click.Choice(["bin", "safetensors"]), help="The format of shards, if not SRC's.")
@click.option(
    "--shard-size", type=size, metavar="SIZE", help="The most bytes of a shard: 500MB, 2GB (the default is 1GiB)."
)
@prefix_option
@click.option("--force", is_flag=True, help="Replace the checkpoint that is at DST.")
@json_option
def convert(
    paths: tuple[str, ...],
    from_native: str | None,
    to_native: str | None,
    name: str | None,
    shard_size: int | None,
    prefix: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the checkpoint SRC again at DST, in another format, in other shards or in one file.

    DST is one file if its name ends in .bin, .pt, .pth or .safetensors, and a directory otherwise. It is compared with
    SRC before it appears; an interrupted conversion changes nothing. A prefix is kept.

    The exit code is 0 when DST is written, and 2 when nothing was changed.

    \b
    Example:
        colossalai-patch convert checkpoint/ converted/ --format safetensors --shard-size 2GB
        colossalai-patch convert checkpoint/ --to-native state.pt
        colossalai-patch convert --from-native optimizer.pt from_native/
    """
    from colossalai_patch.optimizer_checkpoint import conversion
    from colossalai_patch.optimizer_checkpoint.consistent import read_whole
    from colossalai_patch.optimizer_checkpoint.source import Source, open_source

    ends = [path for path in (from_native, *paths, to_native) if path is not None]
    if len(ends) != 2:
        raise click.UsageError("Give one SRC and one DST; --from-native stands for SRC and --to-native for DST.")
    is_file = to_native is not None or ends[1].endswith(SUFFIXES_OF_A_FILE)
    if is_file and (name or shard_size):
        raise click.UsageError("--format and --shard-size are for directories; the suffix of a file says its format.")

    def convert_once() -> Source:
        source = open_source(ends[0], prefix)
        destination = (
            conversion.one_file(ends[1]) if is_file else conversion.sharded(ends[1], source, name, shard_size, prefix)
        )
        replaced = destination.target.replaced()
        if replaced and not force:
            raise Trouble(f"{replaced[0]} is there already. --force replaces it.")
        with ProgressBar() as progress:
            conversion.convert(source, destination, progress)
        return source

    source = read_whole(convert_once, ends[0])
    if as_json:
        print_json({"source": str(source.path), "destination": ends[1]})
    else:
        click.echo(f"{source.path} is converted to {ends[1]}")
