"""Row numbers: which row comes when, and which rank gets it. Sees no dataset.

``protocol`` says what an order is. ``permutation`` is a keyed bijection on ``[0, n)``; ``orders``
are what users pass as ``shuffle=``, built on it and on the sliding ``window`` over ``parts``.
``weighted``, ``balanced`` and ``sorted`` are those that know a value or class of each sample, and
``own`` is for orders that users write. ``epoch`` is what an order becomes for one seed and epoch,
cut into batches and among ranks.
"""
