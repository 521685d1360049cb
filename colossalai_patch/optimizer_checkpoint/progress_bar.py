"""A progress bar on the terminal, for loads that people wait for."""

from tqdm import tqdm

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.ranks import this_rank

SECONDS_WITHOUT_ONE = 2


def progress_bar(total: int) -> "tqdm[None]":
    """Make the bar of a load of ``total`` bytes, to be told of bytes with ``update`` and closed.

    Nothing is shown where there is no terminal, on other ranks than the first, in the first two seconds, and with
    ``COLOSSALAI_PATCH_PROGRESS=0``.
    """
    wanted = settings.progress_wanted() and this_rank() == 0
    only_on_a_terminal = None
    return tqdm(
        desc="loading the optimizer",
        total=total,
        unit="B",
        unit_scale=True,
        leave=False,
        delay=SECONDS_WITHOUT_ONE,
        disable=only_on_a_terminal if wanted else True,
    )
