"""One module for every peer, each with the same few names.

    NAME      what it is called
    PACKAGES  what pip installs for it, besides torch and numpy
    FORMAT    what its data lies in
    SHUFFLE   how far it mixes rows
    SETTINGS  keyword arguments of ``batches`` to try; the fastest is kept
    convert(source, target)            make its files out of a .npy; absent where it reads .npy
    batches(target, batch, **setting)  an epoch of shuffled torch batches each time it is iterated

The driver imports these modules without the peers, so a peer is imported within functions.
"""
