"""What torch calls at the end of ``import torch``: the entry point of group ``torch.backends``.

An exception here would break ``import torch`` for everybody in the environment, so none leaves
:func:`register`: what is wrong becomes a warning. Nothing of inaproto is imported but wishes and names, and
nothing is changed in torch but the list of backends, unless the environment has a wish.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

from inaproto.torch.wishes import NAME, TAKEN_VARIABLE, WITHOUT_VARIABLE, torch_wishes

_PROBE: Final = "inaproto/made"
_LIKE_A_WISH: Final = TAKEN_VARIABLE.removesuffix("ORCH")
"""What a variable begins with that is looked at here: what tells slips from others is loaded for it alone."""


def register() -> None:
    """Make the backend known to torch; with a wish in the environment, take the all-reduces over, too."""
    try:
        _register()
    except Exception as error:  # noqa: BLE001  whatever it is, it must not break `import torch`
        warnings.warn(
            f"inaproto: cannot be a backend of torch: {type(error).__name__}: {error}", stacklevel=2
        )


def _register() -> None:
    _warn_of_slips()
    wishes = torch_wishes(os.environ)
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        if wishes.taken:
            raise RuntimeError("this build of torch has no distributed package with gloo")
        return
    if not hasattr(dist.Backend, NAME.upper()):
        had = dict(dist.Backend.default_device_backend_map)
        dist.Backend.register_backend(
            NAME, create, devices=["cpu", "cuda"] if torch.version.cuda else ["cpu"]
        )
        # Devices that no group names stay with the backends that torch has for them.
        dist.Backend.default_device_backend_map.clear()
        dist.Backend.default_device_backend_map.update(had)
    if wishes.taken:
        from inaproto.torch.kernels import install

        install()


def _warn_of_slips() -> None:
    """Names variables that look like a wish and are none: else gloo would go on, and nobody know why."""
    known = (TAKEN_VARIABLE, WITHOUT_VARIABLE)
    if any(name.startswith(_LIKE_A_WISH) and name not in known for name in os.environ):
        from inaproto.client.variables import misspelt

        for variable, close in misspelt(os.environ):
            if close in known:
                warnings.warn(
                    f"inaproto: environment variable {variable} is not known, did you mean {close}?",
                    stacklevel=3,
                )


def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """A group's backend under the name of inaproto, above which the all-reduces are taken over.

    NCCL for tensors of a GPU where there is one, else gloo.
    """
    import torch
    import torch.distributed as dist

    from inaproto.torch.kernels import install

    install()
    if _is_for_cuda(store) and dist.is_nccl_available() and torch.cuda.is_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _is_for_cuda(store: Any) -> bool:
    """torch does not tell a backend's maker for which device it is; the store's prefix does.

    The key is fresh: other makers of the group, here and at other ranks, have left theirs in the store.
    """
    import secrets  # here, as few processes make a group

    probe = f"{_PROBE}/{secrets.token_hex(8)}"
    store.set(probe, "1")
    below = store.underlying_store
    # torch calls the prefix "cuda/", and its store puts a slash of its own behind a prefix.
    return any(bool(below.check([f"{prefix}/{probe}"])) for prefix in ("cuda/", "cuda"))
