"""The pickle machine: plain values come out as they went in, and nothing is ever run."""

import collections
import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from children import examples
from hostile import damaged, watch
from hypothesis import given, settings
from hypothesis import strategies as st

from ndfeed.errors import Error, FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.formats.torch_globals import Bytes, Foreign
from ndfeed.formats.torch_objects import flatten_object, parse_pickle

torch = pytest.importorskip("torch")

PROTOCOLS = [2, 3, 4, 5]
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def saved(value, protocol=2):
    """The pickle that torch.save puts into its archive."""
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def text(value):
    """The opcode for a text."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


# Honest pickles

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: (
        st.lists(below, max_size=5)
        | st.lists(below, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers(), below, max_size=5).filter(
            lambda value: len(set(map(str, value))) == len(value)
        )
    ),
    max_leaves=20,
)


def with_text_keys(value):
    """The same, with keys of dicts as the text that names are made of."""
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_text_keys, value))
    return value


@settings(max_examples=examples(300), deadline=None)
@given(value=PLAIN, protocol=st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_they_went_in(value, protocol):
    """Whatever keys and shapes are made of, they must not change on the way."""
    assert parse_pickle(pickle.dumps(value, protocol)) == (with_text_keys(value), [])


@each_protocol
def test_numbers_of_every_width(protocol):
    """Each width has an opcode of its own."""
    value = [s * ((1 << n) + d) for n in (0, 7, 8, 15, 16, 31, 32, 63, 500) for s in (1, -1)
             for d in (-1, 0, 1)]  # fmt: skip

    assert parse_pickle(pickle.dumps(value, protocol))[0] == value


@each_protocol
def test_long_lists_and_dicts_come_in_batches(protocol):
    """Pickle writes a thousand items at a time."""
    value = {"list": list(range(2500)), "dict": {i: str(i) for i in range(2500)}}

    assert parse_pickle(pickle.dumps(value, protocol))[0] == with_text_keys(value)


@each_protocol
def test_shared_values_stay_shared(protocol):
    """More than 256 memo entries use the long opcodes."""
    shared = ["x"]
    value = [[str(i)] for i in range(300)] + [shared, shared]
    found = parse_pickle(pickle.dumps(value, protocol))[0]

    assert found == value
    assert found[-1] is found[-2]


@each_protocol
@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_bytes_stay_where_they_are(protocol, size):
    """The bytes of an array are read later, straight from the file."""
    value = bytes(i % 256 for i in range(size))
    data = pickle.dumps([value, bytearray(value)], protocol)
    for place in parse_pickle(data)[0]:
        assert type(place) is Bytes
        stored = data[place.at : place.at + place.stored]

        assert (stored.decode().encode("latin-1") if place.text else stored) == value
        assert (place.size, place.head) == (size, value[:16])


def test_text_that_is_no_unicode_is_escaped():
    """File names with odd bytes are text with half surrogates; a name must be printable."""
    assert parse_pickle(pickle.dumps("a\udc80", 4))[0] == r"a\xed\xb2\x80"
    with pytest.raises(FormatError, match="malformed: 'utf-8' codec"):
        parse_pickle(b"\x80\x02X\x02\0\0\0\xff\xfe.")


@each_protocol
def test_ordered_dicts_are_dicts(protocol):
    """A state dict is one, with attributes that are no data."""
    value = collections.OrderedDict(b=1, a=2)
    value.version = 3

    assert list(parse_pickle(pickle.dumps(value, protocol))[0].items()) == [("b", 1), ("a", 2)]


@each_protocol
def test_complex_numbers_devices_layouts_types_and_sizes(protocol):
    """They sit in checkpoints beside the tensors."""
    value = [1 + 2j, torch.device("cuda", 1), torch.strided, torch.float16, torch.Size([2, 3])]
    found = parse_pickle(saved(value, protocol))[0]

    assert found[:3] == [1 + 2j, "cuda", "torch.strided"]
    assert (found[3].name, found[3].dtype) == ("torch.float16", "<f2")
    assert found[4] == (2, 3)


@each_protocol
def test_foreign_values_are_named_and_not_made(protocol):
    """The class is known only by its name; whoever walks the result says at which key."""
    value = {"a": collections.Counter("ab"), "b": {1}, "c": frozenset((1,)), "d": 2}
    found, strangers = parse_pickle(pickle.dumps(value, protocol))

    assert found["a"] == Foreign(
        "an object of class collections.Counter", "save dict(x) or list(x)"
    )
    assert type(found["b"]) is type(found["c"]) is Foreign
    assert found["d"] == 2
    assert found["a"] in strangers


# Hostile pickles

HOSTILE = {
    "system call": b"\x80\x02cos\nsystem\n" + text("touch owned") + b"\x85R.",
    "eval": b"\x80\x02cbuiltins\neval\n" + text("1+1") + b"\x85R.",
    "eval of Python 2": b"\x80\x02c__builtin__\neval\n" + text("1+1") + b"\x85R.",
    "getattr": b"\x80\x02cbuiltins\ngetattr\nctorch\nTensor\n" + text("x") + b"\x86R.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
    "instance": b"\x80\x02(ios\nsystem\n.",
    "object": b"\x80\x02(cos\nsystem\no.",
    "new object": b"\x80\x02cos\nsystem\n)\x81.",
    "new object with keywords": b"\x80\x04cos\nsystem\n)}\x92.",
    "extension 1": b"\x80\x02\x82\x01.",
    "extension 2": b"\x80\x02\x83\x01\0.",
    "extension 4": b"\x80\x02\x84\x01\0\0\0.",
    "id as text": b"\x80\x02Pstorage\n.",
    "buffer elsewhere": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05N\x98.",
    "dup": b"\x80\x022.",
    "pop": b"\x80\x02N0.",
    "integer as text": b"\x80\x02I1\n.",
    "long as text": b"\x80\x02L1L\n.",
    "float as text": b"\x80\x02F1.0\n.",
    "string": b"\x80\x02S'x'\n.",
    "unicode as text": b"\x80\x02Vx\n.",
    "memo as text": b"\x80\x02Np0\n.",
    "protocol of the future": b"\x80\x06N.",
    "module of a package": b"\x80\x02ctorch.hub\nload\n)R.",
    "load from bytes": b"\x80\x02ctorch.storage\n_load_from_bytes\n)R.",
    "hidden in hooks": saved({"x": torch.zeros(2)}).replace(
        b"ccollections\nOrderedDict\n", b"cos\nsystem\n"
    ),
    "state of a dict": b"\x80\x02}" + b"cos\nsystem\n)Rb.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(name):
    """Nothing is imported, called or made, whether or not the value is used."""
    flatten_object(saved(torch.zeros(1)), big=False)
    with watch(), pytest.raises(UnsupportedError, match=r"none that torch.save writes|holds|proto"):
        flatten_object(HOSTILE[name], big=False)


MALFORMED = {
    "nothing": b"",
    "no stop": b"\x80\x02N",
    "nothing left": b"\x80\x02.",
    "two values": b"\x80\x02NN.",
    "open mark": b"\x80\x02(N.",
    "mark underflow": b"\x80\x02t.",
    "tuple underflow": b"\x80\x02N\x87.",
    "tuple over a mark": b"\x80\x02N(N\x86.",
    "reduce underflow": b"\x80\x02)R.",
    "memo never set": b"\x80\x02h\x07.",
    "long memo never set": b"\x80\x02j\x07\0\0\0.",
    "put of nothing": b"\x80\x02q\0N.",
    "append to a dict": b"\x80\x02}Na.",
    "appends to a tuple": b"\x80\x02)(Ne.",
    "item of a list": b"\x80\x02]" + text("k") + b"Ns.",
    "item of a number": b"\x80\x02K\x01" + text("k") + b"Ns.",
    "key without value": b"\x80\x02}(" + text("k") + b"u.",
    "add to a list": b"\x80\x04](N\x90.",
    "build of a list": b"\x80\x02]}b.",
    "build of a number": b"\x80\x02K\x01}b.",
    "reduce of a number": b"\x80\x02K\x01)R.",
    "reduce of a type": b"\x80\x02ctorch\nfloat32\n)R.",
    "arguments that are no tuple": b"\x80\x02ccollections\nOrderedDict\n]R.",
    "new object of a known class": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "name without its second line": b"\x80\x02cos",
    "name that is a number": b"\x80\x04K\x01K\x02\x93.",
    "name without end": b"\x80\x02c" + b"a" * 10_000,
    "float cut short": b"\x80\x02G\0\0.",
    "id that is text": b"\x80\x02" + text("x") + b"Q.",
    "storage without its parts": b"\x80\x02" + text("storage") + b"\x85Q.",
    "storage of a module": b"\x80\x02("
    + text("storage") + b"ccollections\nOrderedDict\n" + text("0") + text("cpu") + b"K\x01tQ.",
    "bytes of another encoding": b"\x80\x02c_codecs\nencode\n" + text("x") + text("hex")
    + b"\x86R.",
    "bytes that are no latin1": b"\x80\x02c_codecs\nencode\n" + text("€") + text("latin1")
    + b"\x86R.",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_pickles_are_refused(name):
    """Every slip has a message of ours, never an exception of Python's."""
    with pytest.raises(FormatError, match=r"pickle (is malformed|ends|recalls|stops|of \d+ bytes)"):
        parse_pickle(MALFORMED[name])


@pytest.mark.parametrize(
    "code",
    [
        b"X\xff\xff\xff\x7f",
        b"\x8d" + b"\xff" * 8,
        b"B\xff\xff\xff\xff",
        b"\x8e" + b"\xff" * 8,
        b"\x96" + b"\xff" * 8,
        b"\x8b\xff\xff\xff\xff",
    ],
)
def test_lengths_beyond_the_pickle_are_refused(code):
    """Nothing is allocated for what is not there."""
    with pytest.raises(TruncatedError, match=r"expected a pickle of \d+ bytes, found \d+"):
        parse_pickle(b"\x80\x05" + code + b"abc.")


def test_enormous_numbers_are_refused():
    """Python turns them into text in quadratic time, or refuses with an error of its own."""
    with pytest.raises(LimitError, match="a number of at most 255 bytes"):
        parse_pickle(b"\x80\x02\x8b" + struct.pack("<I", 10_000) + b"\x01" * 10_000 + b".")


@pytest.mark.parametrize("key", [b"N", b"G" + bytes(8), b")", b"]", b"}", b"\x88"])
def test_keys_are_text_or_whole_numbers(key):
    """A key becomes part of a name; the hash of a nested tuple can take for ever."""
    with pytest.raises(UnsupportedError, match="keys that are neither text nor whole numbers"):
        parse_pickle(b"\x80\x02}" + key + b"Ns.")


# Bombs

LOOPS = {
    "list": b"\x80\x02]q\0h\0a.",
    "list twice": b"\x80\x02]q\0(h\0h\0e.",
    "dict": b"\x80\x02}q\0" + text("a") + b"h\0s.",
    "dict of list": b"\x80\x02}q\0" + text("a") + b"]q\x01h\0as.",
    "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_depth_are_refused(name):
    """Neither a hang nor a stack that runs over."""
    with pytest.raises(LimitError, match="nested at most 64 deep"):
        flatten_object(LOOPS[name], big=False)


def test_tuple_in_itself_is_refused():
    """Pickle can write one, through a list."""
    inner = []
    value = (inner,)
    inner.append(value)

    with pytest.raises((UnsupportedError, LimitError), match="contain"):
        flatten_object(pickle.dumps(value, 2), big=False)


def test_nested_marks_are_bounded():
    """Each is a stack of its own."""
    with pytest.raises(LimitError, match="marks nested at most 512 deep"):
        parse_pickle(b"\x80\x02" + b"(" * 100_000)


def laughs(levels, leaf):
    """Each level holds the one before ten times."""
    data = b"\x80\x02(" + leaf + b"q\0"
    for level in range(levels):
        data += b"(" + b"h%c" % level * 10 + b"tq%c" % (level + 1)
    return data + b"t."


BOMBS = {
    "numbers": (laughs(20, b"K\x01"), "at most 100,000 values"),
    "nothing": (laughs(20, b")"), "at most 100,000 values"),
    "remarks": (laughs(20, text("x" * 1000)), "at most 100,000 values"),
    "long names": (
        b"\x80\x02}" + text("k" * 500) + b"]q\0(" + b"K\x01" * 200_000 + b"es.",
        "at most 100,000 values",
    ),
    "steps": (b"\x80\x02](" + b"N" * 3_000_000 + b"e.", "at most 2000000 steps"),
    "names": (
        b"\x80\x04" + text("m" * 250) + b"q\0" + text("n" * 250) + b"q\1]("
        + b"h\0h\1\x93" * 200_000 + b"e.",
        "holds an object of class m+ and much else",
    ),
    "bytes as text": (
        b"\x80\x02(c_codecs\nencode\nq\0" + text("é" * 1_000_000)
        + text("latin1") + b"\x86q\1R" + b"h\0h\1R" * 100_000 + b"t.",
        "at most 100,000 values",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bomb", "message"), BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_in_bounded_time_and_memory(bomb, message):
    """A few bytes must not become a billion names: unbounded, each of these takes weeks."""
    tracemalloc.start()
    try:
        with pytest.raises(Error, match=message):
            flatten_object(bomb, big=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 256 << 20


# Damage

SAMPLES = [
    saved(value, protocol)
    for protocol in PROTOCOLS
    for value in (
        {"x": torch.zeros(2, 3), "y": [torch.ones(2, dtype=torch.uint16), 3, "t"]},
        torch.nn.Linear(2, 2).state_dict(),
        {"a": np.arange(300, dtype="u1"), "b": np.float32(2), "c": np.zeros((2, 2), order="F")},
        {"when": np.array([1, 2], "M8[ms]"), "bytes": b"\xff\0", "z": 1 + 2j, "s": {1}},
        torch.nn.Parameter(torch.zeros(3).t()),
    )
]


@settings(max_examples=examples(600), deadline=None)
@given(data=damaged(SAMPLES))
def test_damaged_pickles_raise_our_errors_alone(data):
    """And run, import and open nothing on the way."""
    with watch():
        try:
            flatten_object(data, big=False)
        except Error:
            return
