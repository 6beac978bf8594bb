"""What ``ndfeed.torch`` does beyond documented APIs, and what happens where it cannot.

Tried with PyTorch 2.13 and Lightning 2.6. ``tests/torch/test_framework_hacks.py`` has a test for
each, which fails if they change underneath, and one for what happens then.

``is_read_to_overfit``
    ``Trainer(overfit_batches=...)`` needs the same batches in every epoch. Lightning turns the
    shuffling of a ``DataLoader`` off by its ``sampler``, and asks every other loader for that
    attribute as well. We have no sampler, and Accelerate and others would misuse one; so the
    attribute exists only while Lightning's ``_resolve_overfit_batches`` reads it. Where Lightning
    has another name for that function, the loader keeps shuffling, and ``shuffle=False`` has to be
    written by hand.

``find_store``
    Ranks compare what they are about to read through the key-value store of the process group,
    which PyTorch has no public way to find. A collective would do as well, until one rank iterates
    alone: it would be matched with whatever collective the others call next. Where there is no
    such store, as with MPI, ranks compare by ``all_gather_object``.
"""

import sys
from typing import Any, TypeAlias

import torch.distributed

Store: TypeAlias = Any  # a torch.distributed.Store, which not every build of PyTorch has


def is_read_to_overfit() -> bool:
    """Is the property that calls this read by Lightning, to turn shuffling off?"""
    reading = sys._getframe(2)
    outer = reading.f_back  # the function itself, where an expression in it reads
    names = reading.f_code.co_name, outer.f_code.co_name if outer else ""
    return "_resolve_overfit_batches" in names


def find_store() -> Store | None:
    """Return the store that the process group was made with, if there is one."""
    if torch.distributed.get_backend() == "mpi":
        return None
    find = getattr(torch.distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()
