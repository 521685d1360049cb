"""Spoils checkpoints in every way that the seed draws, loads them, and counts what came of it.

Each input must load to exactly what native makes of the same files, or be refused with ``CheckpointError`` or
``OSError`` and an optimizer that is as before, within two seconds and 256 MB, without running code from a file. The
inputs are loaded in a process of its own, whose death is a violation like any other.
"""

import contextlib
import copy
import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from checkpoints import GROUP_FILE, in_order, save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same
from crafted_pickles import BOMBS, CODE, write_with_pickle
from safetensors import safe_open
from training import make_parameters, split_into_groups, train

SECONDS = 2
MEMORY = 256 * 2**20
CANARY = "canary"

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "asgd": torch.optim.ASGD,
}
FORMATS = {"bin": save_bin, "safetensors": save_safetensors}
WRONG_VALUES = [None, True, -1, 0, 2**70, 1e308, "", "x", "0", [], [[]], {}, {"0": {}}, [0, 0], "../x", "/etc/passwd"]


def make_optimizer(name, steps):
    optimizer = OPTIMIZERS[name](split_into_groups(make_parameters(), 2))
    train(optimizer, steps)
    return optimizer


# Ways to spoil a checkpoint: each takes a random generator and the folder.


def any_file(draw, folder):
    return draw.choice(sorted(file for file in folder.iterdir() if file.is_file()))


def any_shard(draw, folder):
    return draw.choice(sorted(file for file in folder.iterdir() if "optim-0" in file.name))


def index_of(folder):
    return next(folder.glob("*.index.json"))


def flip_bits(draw, folder):
    file = any_file(draw, folder)
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def flip_bits_of_a_head_or_tail(draw, folder):
    file = any_file(draw, folder)
    content = bytearray(file.read_bytes())
    position = draw.randrange(min(200, len(content)))
    content[draw.choice([position, -1 - position])] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def truncate(draw, folder):
    file = any_file(draw, folder)
    os.truncate(file, draw.randrange(file.stat().st_size))


def extend(draw, folder):
    file = any_file(draw, folder)
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.choice([1, 64, 5000])))


def overwrite(draw, folder):
    file = any_file(draw, folder)
    content = bytearray(file.read_bytes())
    start = draw.randrange(len(content))
    length = draw.choice([4, 64, 1024])
    content[start : start + length] = draw.choice([bytes(length), b"\xff" * length, draw.randbytes(length)])
    file.write_bytes(content)


def swap_files(draw, folder):
    first, second = any_file(draw, folder), any_file(draw, folder)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def replace_file(draw, folder):
    file = any_file(draw, folder)
    file.unlink()
    draw.choice([Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: None])(file)


def replace_anywhere(draw, value):
    """Replace one place in nested lists and dicts by a wrong value."""
    places = [(container, key) for container in containers_of(value) for key in keys_of(container)]
    if not places:
        return draw.choice(WRONG_VALUES)
    container, key = draw.choice(places)
    container[key] = draw.choice(WRONG_VALUES)
    return value


def containers_of(value):
    if isinstance(value, (dict, list)):
        yield value
        for key in keys_of(value):
            yield from containers_of(value[key])


def keys_of(container):
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def wrong_value_in_the_index(draw, folder):
    file = index_of(folder)
    file.write_text(json.dumps(replace_anywhere(draw, json.loads(file.read_text()))))


def garbled_index(draw, folder):
    file = index_of(folder)
    text = file.read_text()
    start = draw.randrange(len(text))
    insertion = draw.choice(["", "{", "]", '"', ",", "\\u0000", "1e999", "NaN", "[" * 5000, '{"a":' * 5000])
    file.write_text(text[:start] + insertion + text[start + draw.choice([0, 1, 20]) :])


def duplicate_id(draw, folder):
    file = index_of(folder)
    first, second = draw.sample(["0", "1", "2", "00", "7", "x"], 2)
    file.write_text(file.read_text().replace(f'"{first}":', f'"{second}":'))


def wrong_value_in_the_groups(draw, folder):
    torch.save(replace_anywhere(draw, torch.load(folder / GROUP_FILE, weights_only=True)), folder / GROUP_FILE)


def wrong_value_in_the_states(draw, folder):
    shard = any_shard(draw, folder)
    if shard.suffix == ".bin":
        torch.save(replace_anywhere(draw, torch.load(shard, weights_only=True)), shard)
        return
    wrong_value_in_a_header(draw, folder)


def wrong_value_in_a_header(draw, folder):
    shard = any_shard(draw, folder)
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if shard.suffix == ".bin" or length > len(content):
        return
    header = json.dumps(replace_anywhere(draw, json.loads(content[8 : 8 + length]))).encode()
    shard.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


def huge_header(draw, folder):
    shard = any_shard(draw, folder)
    length = draw.choice([0, 1, 2**20, 2**31, 2**63, 2**64 - 1])
    shard.write_bytes(length.to_bytes(8, "little") + shard.read_bytes()[8:])


def crafted_pickle(draw, folder):
    craft = draw.choice([*CODE.values(), *BOMBS.values()])
    data = craft(folder / CANARY)
    file = draw.choice([any_shard(draw, folder), folder / GROUP_FILE])
    if file.suffix == ".bin":
        write_with_pickle(file, data)
        return
    header = {
        "__metadata__": {"non_tensor_keys": '["state.0.step"]'},
        "state.0.step": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]},
    }
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


SPOILERS = [
    flip_bits,
    flip_bits_of_a_head_or_tail,
    truncate,
    extend,
    overwrite,
    swap_files,
    replace_file,
    wrong_value_in_the_index,
    garbled_index,
    duplicate_id,
    wrong_value_in_the_groups,
    wrong_value_in_the_states,
    wrong_value_in_a_header,
    huge_header,
    crafted_pickle,
]


def load_natively(optimizer, folder):
    """Read the files with torch and safetensors alone, in one piece, and let native load them."""
    index = json.loads(index_of(folder).read_text())
    states = {}
    for name in sorted(set(index["weight_map"].values())):
        states |= read_natively(folder / name)
    named = {int(key) if key.isdecimal() else key for key in index["weight_map"]}
    states = {key: state for key, state in states.items() if key in named}
    groups = torch.load(folder / index["metadata"]["param_groups"], map_location="cpu", weights_only=True)
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def read_natively(shard):
    if shard.suffix == ".bin":
        return torch.load(shard, map_location="cpu", weights_only=True)
    states = {}
    with safe_open(shard, framework="pt") as file:
        pickled = json.loads((file.metadata() or {}).get("non_tensor_keys", "[]"))
        for key in file.keys():  # noqa: SIM118
            _, param_id, name = key.split(".", 2)
            tensor = file.get_tensor(key)
            value = pickle._loads(tensor.numpy().tobytes()) if key in pickled else tensor.clone()
            states.setdefault(int(param_id) if param_id.isdecimal() else param_id, {})[name] = value
    return states


class Violation(Exception):
    """What must not happen."""


def try_input(seed, corpus, folder):
    """Spoil and load one checkpoint, and say what came of it."""
    draw = random.Random(seed)
    name, checkpoint_format = draw.choice(list(corpus))
    checkpoint = folder / "checkpoint"
    shutil.copytree(corpus[name, checkpoint_format], checkpoint)
    spoil(draw, checkpoint)
    optimizer = make_optimizer(name, steps=1)
    before = copy.deepcopy(optimizer.state_dict())
    try:
        load_in_bounds(optimizer, checkpoint)
    except (ValueError, OSError) as error:  # CheckpointError, and native's own ValueError for groups that do not fit
        assert_same(optimizer.state_dict(), before)
        return f"refused: {type(error).__name__}"
    finally:
        if (checkpoint / CANARY).exists():
            raise Violation("code from a file ran")
    expected = make_optimizer(name, steps=1)
    load_natively(expected, checkpoint)
    assert_same(comparable(optimizer.state_dict()), comparable(expected.state_dict()))
    return "loaded as natively"


def spoil(draw, checkpoint):
    """Spoil in one or two ways, as far as what is spoilt can be spoilt again; last, by what can no longer be opened."""
    spoilers = draw.choices(SPOILERS, k=draw.choice([1, 1, 1, 2]))
    for spoiler in sorted(spoilers, key=lambda spoiler: spoiler is replace_file):
        with contextlib.suppress(Exception):
            spoiler(draw, checkpoint)


def comparable(value):
    """In order, and without the address in what native makes of a string: the text of a generator."""
    value = in_order(value)
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value.split(" at 0x")[0] if isinstance(value, str) else value


def load_in_bounds(optimizer, checkpoint):
    def too_slow(*_):
        raise Violation(f"more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        GeneralCheckpointIO().load_optimizer(optimizer, checkpoint)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def try_inputs(seeds, connection):
    """In a process of its own: try each input and send what came of it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = {}
        for name in OPTIMIZERS:
            for checkpoint_format, save in FORMATS.items():
                corpus[name, checkpoint_format] = Path(folder, f"{name}-{checkpoint_format}")
                corpus[name, checkpoint_format].mkdir()
                save(make_optimizer(name, steps=2), corpus[name, checkpoint_format])
        try_input(0, corpus, Path(tempfile.mkdtemp(dir=folder)))  # so that what is imported late is there by now
        limit_memory()
        for seed in seeds:
            one = Path(tempfile.mkdtemp(dir=folder))
            try:
                outcome = try_input(seed, corpus, one)
            except BaseException as error:
                outcome = f"VIOLATION: {type(error).__name__}: {str(error)[:300]}"
            connection.send((seed, outcome))
            shutil.rmtree(one)


def run(seeds):
    """Try all inputs and give (seed, outcome) pairs; a process that dies is replaced by one that goes on behind it."""
    seeds = list(seeds)
    context = multiprocessing.get_context("spawn")
    while seeds:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=try_inputs, args=(seeds, theirs))
        process.start()
        theirs.close()
        try:
            while True:
                yield ours.recv()
                seeds.pop(0)
        except EOFError:
            process.join()
        if seeds:
            yield seeds.pop(0), f"VIOLATION: the process died with {process.exitcode}"


def main(count):
    outcomes = Counter()
    for seed, outcome in run(range(count)):
        kind, _, detail = outcome.partition(": ")
        outcomes[outcome if kind == "refused" else kind] += 1
        if kind == "VIOLATION":
            print(f"seed {seed}: {detail}", flush=True)
    print(f"{count} inputs: {', '.join(f'{number} {outcome}' for outcome, number in sorted(outcomes.items()))}")
    print(f"{outcomes['VIOLATION']} violations")
    return outcomes["VIOLATION"] != 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
