"""How large a batch is: a number of samples, or a budget of tokens.

With a budget, the length of the longest sample of a batch times the number of its samples is at
most that many tokens, whatever form ``ragged=`` gives them: the same batches come in every
framework. Such batches are made of samples of similar length (``ndfeed.Buckets``).
"""

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.column import Field
from ndfeed.loading.ragged import Pads
from ndfeed.order.buckets import Buckets
from ndfeed.order.protocol import Order

_MOST_TOKENS = 1 << 40


def as_batch_size(batch_size: int | None, tokens: int | None) -> tuple[int, int]:
    """Return the most samples of a batch, and its budget of tokens or 0."""
    if tokens is None:
        if batch_size is None:
            raise TypeError(
                "batch_size must be an integer, got None; give it, or tokens= for batches of "
                "similar length"
            )
        return batch_size, 0
    if batch_size is not None:
        raise ValueError(
            "batch_size and tokens both say how large a batch is; leave out one of them"
        )
    budget = as_count("tokens", tokens, 1, _MOST_TOKENS)
    return budget, budget


def order_by_length(
    shuffle: object, fields: list[Field], pads: Pads, *, mixed: bool = False
) -> Order:
    """Return the order for a budget of tokens; ``True`` goes by the only field that is ragged."""
    if mixed:
        raise ValueError(
            "tokens does not work with a mixture, whose batches have samples of all sources, long "
            'and short; use batch_size, with ragged="packed" where nothing is to be padded, or a '
            "sum of the datasets, such as a + b + b"
        )
    if any(pad.lengths for pad in pads.values()):
        raise ValueError(
            "pad_to gives all samples one length, and tokens is for batches of similar length; "
            "leave out pad_to, or use batch_size"
        )
    if isinstance(shuffle, Buckets):
        return shuffle
    ragged = [field.name for field in fields if field.ragged]
    if not ragged:
        raise ValueError(
            "tokens is for samples of different lengths, and no stored field has them; use "
            "batch_size, or pass the length of every sample: shuffle=ndfeed.Buckets(lengths)"
        )
    if shuffle is not True:
        raise ValueError(
            "tokens needs batches of similar length; pass shuffle=True or "
            f"shuffle=ndfeed.Buckets({ragged[0]!r}), got shuffle={shuffle!r}"
        )
    if len(ragged) > 1:
        listed = " and ".join(map(repr, ragged[:4]))
        raise ValueError(
            f"tokens must be those of one field, and the lengths of {listed} differ; pass "
            f"shuffle=ndfeed.Buckets({ragged[0]!r})"
        )
    return Buckets(ragged[0])
