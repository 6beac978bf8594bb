"""``loading.uninterrupted``: work that Ctrl-C must not cut short."""

import pytest
from children import run

from ndfeed.loading.uninterrupted import uninterrupted


def test_ctrl_c_is_raised_when_the_work_is_done():
    """A loader that was closed by Ctrl-C and begun anew was closed once more, later."""
    code = """
    import signal, threading
    from ndfeed.loading.uninterrupted import uninterrupted

    done = []

    def work():
        time.sleep(0.3)
        done.append("the work")

    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        uninterrupted(work)
    except KeyboardInterrupt:
        done.append("the interrupt")
    time.sleep(0.5)
    print(done)
    """

    assert run(code) == "['the work', 'the interrupt']\n"


def test_results_and_errors_come_back():
    """As if the caller had done the work itself."""
    assert uninterrupted(lambda: 3) == 3
    with pytest.raises(LookupError, match="of the work"):
        uninterrupted(_fail)


def _fail():
    raise LookupError("of the work")
