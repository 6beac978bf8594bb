"""Finding the part of a sample, and its row there."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.dataset.column import Group

LENGTHS = st.one_of(
    st.lists(st.integers(1, 9), min_size=2, max_size=40),
    st.lists(st.integers(90, 200), min_size=2, max_size=40),
    st.lists(st.integers(0, 3) | st.integers(0, 10**12), min_size=2, max_size=6),
)


@given(lengths=LENGTHS, data=st.data())
def test_a_sample_is_found_in_its_part(lengths, data):
    """Every sample lies in one part, whatever the lengths of parts, also where some are empty."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ends = st.sampled_from(starts).flatmap(lambda at: st.integers(int(at) - 1, int(at) + 1))
    anywhere = st.integers(0, max(int(starts[-1]) - 1, 0))
    chosen = data.draw(st.lists((ends | anywhere).filter(lambda s: 0 <= s < starts[-1])))
    part, row = Group(starts, ()).locate(np.array(chosen, np.int64))

    assert (starts[part] + row == chosen).all()
    assert (row >= 0).all()
    assert (row < np.array(lengths)[part]).all()
