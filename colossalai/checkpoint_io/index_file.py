from pathlib import Path

from colossalai_patch.optimizer_checkpoint import check_name
from colossalai_patch.optimizer_checkpoint.index import SAVED_BY_KEY
from colossalai_patch.optimizer_checkpoint.save import save_of
from colossalai_patch.overlay import extend_release, installed_release

release = extend_release(globals())


class CheckpointIndexFile(release.CheckpointIndexFile):
    def load(self, json_path):
        super().load(json_path)
        group_file = self.metadata.get("param_groups")
        for name in (*self.weight_map.values(), *filter(None, [group_file])):
            check_name(name, self.root_path)

    def write_index_file(self, save_index_file):
        self.append_meta_data(SAVED_BY_KEY, f"colossalai {installed_release()}")
        path = str(Path(self.root_path, save_index_file))
        save = save_of(path)
        if save is None:
            super().write_index_file(save_index_file)
        else:
            save.write_index(path, lambda: release.CheckpointIndexFile.write_index_file(self, save_index_file))
