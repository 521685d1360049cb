"""Where scripts save to, and what they do with the folders, in a process each: habits_of_folders.py FOLDER [NAME...]"""

import os
import shutil

from alone import alone, assert_restores, step
from comparison import assert_same
from forked_ranks import main
from scripts import (
    FILES,
    KINDS,
    MODEL,
    OPTIMIZER,
    SHARDED,
    ask_to_save,
    assert_loads_of,
    content,
    files_below,
    for_each,
    named,
    path_of,
    save,
)

BACKGROUND = {"at_once": False, "in_the_background": True}


def paths_are_pathlib(kind, folder):
    run, path = alone(), path_of(kind, folder)
    shard = kind in SHARDED
    thing, name = (run.model, "model") if "model" in kind else (run.optimizer, "optimizer")
    getattr(run.booster, f"save_{name}")(thing, path, shard=shard)
    other = alone(seed=9)
    target = other.model if "model" in kind else other.optimizer
    # Stock takes a Path for what is in shards; for a file it asks the path for its suffix as a string.
    getattr(other.booster, f"load_{name}")(target, path if shard else str(path))
    assert_same(content(other, kind), content(run, kind))


def a_path_has_no_suffix(kind, folder):
    run, path = alone(), folder / "weights"
    ask_to_save(run, kind, path, kind in SHARDED)
    assert files_below(folder) == ["weights"]
    assert_restores(run, kind, path)


def a_directory_is_called_like_a_file(kind, folder):
    run, path = alone(), folder / "epoch.1.pt"
    ask_to_save(run, kind, path, kind in SHARDED)
    assert path.is_dir()
    assert_restores(run, kind, path)


def a_model_goes_to_the_folder_of_the_epochs(folder):
    run = alone()
    for epoch in range(2):
        for kind in SHARDED:
            save(run, kind, folder / f"epoch-{epoch}")
    files = files_below(folder)
    ask_to_save(run, MODEL, folder, MODEL in SHARDED)
    assert set(files) < set(files_below(folder))
    assert_restores(run, MODEL, folder)
    assert_restores(run, OPTIMIZER, folder / "epoch-1" / "optimizer")


def shards_go_to_a_folder_of_a_tokenizer(kind, folder):
    others = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "trainer_state.json"]
    for name in others:
        (folder / name).write_text(f'{{"name": "{name}"}}')
    run = alone()
    for _ in range(2):
        ask_to_save(run, kind, folder, kind in SHARDED)
    for name in others:
        assert (folder / name).read_text() == f'{{"name": "{name}"}}'
    assert_restores(run, kind, folder)


def each_epoch_saves_over_the_last(kind, when, folder):
    run = alone()
    for _ in range(3):
        path = save(run, kind, folder, use_async=BACKGROUND[when])
        run.booster.checkpoint_io.synchronize()
        run.booster.checkpoint_io._sync_io()
        assert_restores(run, kind, path)
        step(run)


def older_checkpoints_go_as_soon_as_a_save_returned(what, folder):
    run = alone()
    for epoch in range(4):
        now, before = folder / f"epoch-{epoch}", folder / f"epoch-{epoch - 1}"
        for kind in SHARDED:
            save(run, kind, now, use_async=True)
        if before.exists():
            shutil.rmtree(before) if what == "deleted" else before.rename(folder / f"old-{epoch - 1}")
        run.booster.checkpoint_io.synchronize()
        expected = {kind: content(run, kind) for kind in SHARDED}
        step(run)
    run.booster.checkpoint_io._sync_io()
    for kind in SHARDED:
        assert_loads_of(alone(seed=9), kind, now / kind.split()[1], expected[kind])
    assert [path.name for path in folder.glob("epoch-*")] == ["epoch-3"]
    assert len(list(folder.glob("old-*"))) == (0 if what == "deleted" else 3)


def mode_and_owner_change_as_soon_as_a_save_returned(kind, when, folder):
    run = alone()
    for epoch in range(5):
        path = save(run, kind, folder / str(epoch), use_async=BACKGROUND[when])
        for base, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.chmod(os.path.join(base, name), 0o700 if name in folders else 0o600)  # noqa: PTH101, PTH118
                shutil.chown(os.path.join(base, name), os.getuid(), os.getgid())  # noqa: PTH118
        run.booster.checkpoint_io._sync_io()
        assert_restores(run, kind, path)


HABITS = {
    **for_each(paths_are_pathlib, KINDS, ranks=1),
    **for_each(a_path_has_no_suffix, FILES, ranks=1),
    **for_each(a_directory_is_called_like_a_file, SHARDED, ranks=1),
    **named(a_model_goes_to_the_folder_of_the_epochs, ranks=1),
    **for_each(shards_go_to_a_folder_of_a_tokenizer, SHARDED, ranks=1),
    **for_each(each_epoch_saves_over_the_last, [(kind, when) for kind in KINDS for when in BACKGROUND], ranks=1),
    **for_each(older_checkpoints_go_as_soon_as_a_save_returned, ("deleted", "renamed"), ranks=1),
    **for_each(
        mode_and_owner_change_as_soon_as_a_save_returned,
        [(kind, when) for kind in KINDS for when in BACKGROUND],
        ranks=1,
    ),
}


if __name__ == "__main__":
    main(HABITS)
