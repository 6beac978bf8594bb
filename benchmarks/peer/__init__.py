"""One module for each peer, all with the same few names.

    NAME      the name of the peer
    PACKAGES  what pip installs for it, besides torch and numpy
    FORMAT    the format of its data
    SHUFFLE   how far it mixes rows
    SETTINGS  keyword arguments of ``batches`` to try; the fastest is kept
    convert(source, target)            make its files from a .npy; absent if it reads .npy
    batches(target, batch, **setting)  an epoch of shuffled torch batches each time it is iterated

The driver imports these modules without the peers, so a peer is imported within functions.
"""
