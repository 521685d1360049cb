from colossalai_patch.optimizer_checkpoint import check_name
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


class CheckpointIndexFile(release.CheckpointIndexFile):
    def load(self, json_path):
        super().load(json_path)
        group_file = self.metadata.get("param_groups")
        for name in (*self.weight_map.values(), *filter(None, [group_file])):
            check_name(name, self.root_path)
