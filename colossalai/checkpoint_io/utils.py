import torch

from colossalai_patch.optimizer_checkpoint.save import save_of
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def save_state_dict(state_dict, checkpoint_file_path, use_safetensors):
    save = save_of(checkpoint_file_path)
    if save is None:
        release.save_state_dict(state_dict, checkpoint_file_path, use_safetensors)
    elif use_safetensors:
        save.write_by_path(
            checkpoint_file_path, lambda: release.save_state_dict(state_dict, checkpoint_file_path, True)
        )
    else:
        save.write(checkpoint_file_path, lambda file: release.save_state_dict(state_dict, file, False))


def save_param_groups(state_dict, group_file_path):
    save = save_of(group_file_path)
    if save is None:
        release.save_param_groups(state_dict, group_file_path)
    else:
        save.write(group_file_path, lambda file: release.save_param_groups(state_dict, file))


def _pin_tensor(tensor, empty=True):
    if torch.cuda.is_available():
        return release._pin_tensor(tensor, empty)
    return torch.empty_like(tensor, device="cpu") if empty else tensor
