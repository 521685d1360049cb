from functools import partial

from colossalai_patch.optimizer_checkpoint.save import save_adapter
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


class TorchDDPCheckpointIO(release.TorchDDPCheckpointIO):
    def save_lora_as_pretrained(self, model, checkpoint, use_safetensors=False, state_dict=None):
        ranks, write = self._model_ranks(shard=False), partial(super().save_lora_as_pretrained, model)
        save_adapter(checkpoint, ranks, write, use_safetensors, state_dict)
