from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def search_tp_partition_dim(current_shape, original_shape, tp_size):
    """As the release's, for padded parameters too, whose slices together are longer than the original."""
    sharded = (dim for dim, length in enumerate(original_shape) if length > current_shape[dim])
    dim = next(sharded, None)
    if dim is not None and original_shape[dim] > tp_size * current_shape[dim]:
        raise ValueError(
            f"{tp_size} slices of the shape {tuple(current_shape)} do not make up {tuple(original_shape)}."
        )
    return dim
