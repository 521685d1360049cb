"""A patch to the checkpoint IO of an installed ColossalAI.

Importing this package, which the installed ``colossalai_patch.pth`` does at the start of every Python process, only
registers an import hook: neither torch nor ColossalAI is imported. ``COLOSSALAI_PATCH=off`` leaves ColossalAI stock.
"""

from colossalai_patch import overlay

__version__ = "0.1.0"

overlay.install()
