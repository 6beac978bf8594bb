"""What is computed lazily is computed once, kept, and never in anybody's way."""

from dataclasses import dataclass

from children import run

from ndfeed.dataset.arguments import computed_once, lazy


@dataclass(frozen=True)
class Square:
    """Counts how often it is asked to compute."""

    side: int
    asked: list

    @lazy
    def area(self):
        """Side times side."""
        self.asked.append(self.side)
        return self.side**2


def test_it_is_computed_at_its_first_use_and_kept():
    """Also in a frozen object, and for each object on its own."""
    asked = []
    two, three = Square(2, asked), Square(3, asked)
    assert asked == []

    assert (two.area, two.area, three.area) == (4, 4, 9)
    assert asked == [2, 3]
    assert Square.area.__doc__ == "Side times side."


def test_a_function_of_one_object_is_computed_once_for_each():
    """Also in frozen objects, and where the result is ``None``."""
    asked = []

    @computed_once
    def area(square):
        asked.append(square.side)

    @computed_once
    def twice(square):
        """Side and side."""
        return square.side * 2

    two, three = Square(2, asked), Square(3, asked)

    assert [area(two), area(two), area(three)] == [None] * 3
    assert [twice(two), twice(two), twice(three)] == [4, 4, 6]
    assert asked == [2, 3]
    assert two.area == 4
    assert twice.__doc__ == "Side and side."


def test_a_child_forked_while_it_is_computed_does_not_wait():
    """A lock that another thread holds at that moment would stay locked in the child."""
    code = """
    import threading, warnings
    from ndfeed.dataset.arguments import lazy
    warnings.simplefilter("ignore")  # of threads and forks: this is about them
    class Slow:
        def __init__(self, compute):
            self.compute = compute
        @lazy
        def value(self):
            self.compute()
            return 7
    begun, go_on = threading.Event(), threading.Event()
    slow = Slow(lambda: (begun.set(), go_on.wait()))
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    begun.wait()
    pid = os.fork()
    if not pid:
        os._exit(Slow(lambda: None).value)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    go_on.set()
    thread.join()
    """

    assert run(code, timeout=250) == "7\n"
