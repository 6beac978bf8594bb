"""Row numbers: which row comes when, and which rank gets it. Sees no dataset.

``permutation`` is a keyed bijection on ``[0, n)``; ``orders`` are what users pass as
``shuffle=``, built on it and on the sliding ``window`` over ``parts``; ``epoch`` is what an
order becomes for one seed and epoch, cut into batches and among ranks.
"""
