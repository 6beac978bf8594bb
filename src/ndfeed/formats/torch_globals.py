"""What the names in a torch pickle stand for: descriptions, never the objects themselves.

``GLOBALS`` is the complete list of supported names. Each stands for an element type, a kind of
storage, or a function from argument descriptions to the description of its result. Any other name
becomes a ``Foreign`` value; the code that finds it in the result refuses the file and can name the
key. Nothing here imports, calls or constructs what a file names.

Arguments come from the file and are checked one by one: a ``ValueError`` says what is wrong.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ndfeed.errors import shown
from ndfeed.formats.description import MOST_BYTES, MOST_DIMENSIONS
from ndfeed.formats.dtypes import EXTENDED, canonical

# A value of the pickle: None, bool, int, float, complex, str, list, tuple, dict, or one of the
# classes below. The named tuples are distinguished from plain ones by their exact type.
Value = Any


class Global(NamedTuple):
    """A name on the list: a function if it has ``build``, else a type of elements or storages."""

    name: str
    build: Callable[[tuple[Value, ...]], Value] | None = None
    dtype: str = ""


class Foreign(NamedTuple):
    """An object that cannot be described: what it is, and how to save it differently."""

    what: str
    remedy: str


class Bytes(NamedTuple):
    """Bytes in the stream: ``stored`` bytes from ``at``, which decode to ``size`` bytes.

    If ``text``, they are UTF-8 text with one character per byte. ``head`` has the first 16.
    """

    at: int
    stored: int
    size: int
    text: bool
    head: bytes


class Storage(NamedTuple):
    """A record of the archive. Elements of an untyped storage are bytes."""

    dtype: str
    key: str
    elements: int


class Tensor(NamedTuple):
    """A view of a storage, counted in elements."""

    storage: Storage
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Dtype:
    """A NumPy dtype: created from its code, completed by its state."""

    __slots__ = ("code", "order", "unit", "unread")

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "="
        self.unit = ""
        self.unread: Foreign | None = None

    def set_state(self, state: Value) -> None:
        """Take byte order and unit from ``(version, order, base, names, fields, …, metadata)``."""
        if type(state) is not tuple or not 5 <= len(state) <= 9 or type(state[1]) is not str:
            raise ValueError("the state of a NumPy dtype is malformed")
        if state[1] not in ("<", ">", "|", "="):
            raise ValueError(f"unknown byte order {state[1]!r:.20}")
        self.order = state[1]
        if state[2] is not None or state[3] is not None:
            self.unread = _STRUCTURED
        if len(state) == 9 and self.code in ("M8", "m8"):
            self.unit = _unit(state[8])

    def name(self) -> str:
        """The name that ``dtypes`` knows."""
        if self.code in EXTENDED:
            if self.order == ">" and EXTENDED[self.code] > 1:
                raise ValueError(f"big-endian {self.code} is unknown")
            return self.code
        return canonical(self.order + self.code + self.unit)


class Ndarray:
    """A NumPy array or scalar: created empty, completed by its state."""

    __slots__ = ("axes", "data", "dtype", "fortran", "shape", "unread")

    def __init__(self) -> None:
        self.dtype = Dtype("u1")
        self.shape: tuple[int, ...] = (0,)
        self.data = EMPTY
        self.fortran = False
        self.axes: tuple[int, ...] | None = None
        self.unread: Foreign | None = None

    def set_state(self, state: Value) -> None:
        """Take everything from ``([version], shape, dtype, fortran, data)``."""
        if type(state) is not tuple or len(state) not in (4, 5):
            raise ValueError("the state of a NumPy array is malformed")
        shape, dtype, fortran, data = state[-4:]
        if type(fortran) is not bool and fortran not in (0, 1):
            raise ValueError("the order of a NumPy array is neither C nor Fortran")
        self.fill(shape, dtype, data)
        self.fortran = bool(fortran)

    def fill(self, shape: Value, dtype: Value, data: Value) -> None:
        """Set what every array has, or remember why it cannot be read."""
        if type(dtype) is Foreign:
            self.unread = dtype
            return
        if type(dtype) is not Dtype:
            raise ValueError("a NumPy array without a dtype")
        self.shape, self.dtype = _lengths(shape), dtype
        self.unread = _OBJECTS if type(data) is not Bytes or dtype.code[:1] == "O" else None
        if type(data) is Bytes:
            self.data = data


def persistent(value: Value) -> Value:
    """Return the storage of a persistent id ``("storage", type, key, location, count)``."""
    if type(value) is not tuple or len(value) != 5 or value[0] != "storage":
        raise ValueError("a persistent id that is no storage")
    _, kind, key, _, count = value
    if type(kind) is Foreign:
        return kind
    if type(kind) is not Global or not kind.name.endswith("Storage") or type(key) is not str:
        raise ValueError("a storage without a type or a key")
    return Storage(kind.dtype, key, _as_whole_number(count))


def foreign(module: str, name: str) -> Foreign:
    """Return the value of a name that is not on the list."""
    full = shown(f"{module.replace('__builtin__', 'builtins')}.{name}")[:120]
    for start, (what, remedy) in _REFUSED.items():
        if full.startswith(start):
            return Foreign(what or f"an object of class {full}", remedy)
    return Foreign(f"an object of class {full}", "convert it before torch.save")


def _as_whole_number(value: Value) -> int:
    if type(value) is not int or not 0 <= value < MOST_BYTES:
        raise ValueError("expected a whole number in [0, 2**63)")
    return value


def _lengths(value: Value) -> tuple[int, ...]:
    if type(value) is not tuple:
        raise ValueError("expected a tuple of whole numbers")
    if len(value) > MOST_DIMENSIONS:
        raise ValueError(f"expected at most {MOST_DIMENSIONS} dimensions, found {len(value)}")
    for n in value:
        if type(n) is not int or not 0 <= n < MOST_BYTES:
            raise ValueError("lengths and strides must be whole numbers in [0, 2**63)")
    return value


def _unit(metadata: Value) -> str:
    """Return ``[ns]`` from a dtype's metadata ``({…}, (b"ns", 1, 1, 1))``."""
    if type(metadata) is not tuple or len(metadata) != 2 or type(metadata[1]) is not tuple:
        raise ValueError("the metadata of a NumPy dtype is malformed")
    if len(metadata[1]) != 4 or type(metadata[1][0]) is not Bytes:
        raise ValueError("the unit of a NumPy dtype is malformed")
    unit, count = metadata[1][0].head.decode("latin-1"), _as_whole_number(metadata[1][1])
    return "" if unit == "generic" else f"[{count if count != 1 else ''}{unit}]"


# Builders, one for each function on the list. ``args`` are the arguments of the call.


def _tensor(args: tuple[Value, ...], dtype: str, extra: Value) -> Value:
    storage, start, shape, strides = args
    if type(storage) is Foreign:
        return storage
    if type(storage) is not Storage:
        raise ValueError("a tensor without a storage")
    if type(extra) is dict and (extra.get("conj") or extra.get("neg")):
        return _LAZY
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise ValueError("a tensor needs as many strides as dimensions")
    _lengths(shape)
    _lengths(strides)
    return Tensor(storage, dtype or storage.dtype or "|u1", _as_whole_number(start), shape, strides)


def _tensor_v2(args: tuple[Value, ...]) -> Value:
    _count(args, 4, 7)
    return _tensor(args[:4], "", args[6] if len(args) > 6 else None)


def _tensor_v3(args: tuple[Value, ...]) -> Value:
    _count(args, 7, 8)
    kind = args[6]
    if type(kind) is Foreign:
        return kind
    if type(kind) is not Global or not kind.dtype or kind.name.endswith("Storage"):
        raise ValueError("a tensor without a dtype")
    return _tensor(args[:4], kind.dtype, args[7] if len(args) > 7 else None)


def _parameter(args: tuple[Value, ...]) -> Value:
    _count(args, 3, 4)
    if type(args[0]) not in (Tensor, Foreign):
        raise ValueError("a parameter without a tensor")
    return args[0]


def _from_type(args: tuple[Value, ...]) -> Value:
    """Build a tensor with attributes or of a subclass: ``(function, class, arguments, state)``."""
    _count(args, 4, 4)
    function, kind, inner, _ = args
    if type(kind) is Foreign or type(function) is Foreign:
        return kind if type(kind) is Foreign else function
    if type(function) is not Global or type(kind) is not Global or type(inner) is not tuple:
        raise ValueError("a tensor without a class")
    if function.build not in (_tensor_v2, _tensor_v3, _parameter) or kind.name not in _TENSORS:
        raise ValueError("a tensor of an unexpected class")
    return function.build(inner)


def _mapping(args: tuple[Value, ...]) -> Value:
    _count(args, 0, 0)
    return {}


def _size(args: tuple[Value, ...]) -> Value:
    _count(args, 1, 1)
    return _lengths(args[0])


def _label(args: tuple[Value, ...]) -> Value:
    """Return devices and layouts as text for remarks."""
    _count(args, 1, 2)
    if type(args[0]) is not str:
        raise ValueError("expected a name")
    return args[0]


def _bytes(args: tuple[Value, ...]) -> Value:
    _count(args, 0, 1)
    if args and type(args[0]) is not Bytes:
        raise ValueError("expected bytes")
    return args[0] if args else EMPTY


def _complex(args: tuple[Value, ...]) -> Value:
    _count(args, 2, 2)
    if type(args[0]) is not float or type(args[1]) is not float:
        raise ValueError("the parts of a complex number must be floats")
    return complex(*args)


def _dtype(args: tuple[Value, ...]) -> Value:
    _count(args, 1, 3)
    if type(args[0]) is Foreign:
        return args[0]
    if type(args[0]) is Global and args[0].dtype in EXTENDED:
        return Dtype(args[0].dtype)
    if type(args[0]) is not str or len(args[0]) > 16:
        raise ValueError("a NumPy dtype without its code")
    return Dtype(args[0])


def _reconstruct(args: tuple[Value, ...]) -> Value:
    _count(args, 3, 3)
    if args[0] is not GLOBALS["numpy", "ndarray"] and type(args[0]) is not Foreign:
        raise ValueError("a NumPy array of an unexpected class")
    return args[0] if type(args[0]) is Foreign else Ndarray()


def _scalar(args: tuple[Value, ...]) -> Value:
    _count(args, 2, 2)
    array = Ndarray()
    array.fill((), args[0], args[1])
    return array


def _frombuffer(args: tuple[Value, ...]) -> Value:
    """Build from ``(buffer, dtype, shape, order)``; order K adds the axes to transpose by."""
    _count(args, 4, 5)
    data, dtype, shape, order = args[:4]
    array = Ndarray()
    array.fill(shape, dtype, data)
    if order == "K" and len(args) == 5:
        array.axes = _lengths(args[4])
        if sorted(array.axes) != list(range(len(array.shape))):
            raise ValueError("the axes of a NumPy array are no permutation")
    elif order not in ("C", "F"):
        raise ValueError("the order of a NumPy array is neither C nor Fortran")
    array.fortran = order == "F"
    return array


def _count(args: tuple[Value, ...], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        raise ValueError(f"expected {least} to {most} arguments, found {len(args)}")


EMPTY = Bytes(0, 0, 0, False, b"")
_STRUCTURED = Foreign(
    "a structured NumPy array", "save each of its fields as an array: {name: x[name]}"
)
_OBJECTS = Foreign("a NumPy array of Python objects", "save numbers: np.stack(list(x)) if it fits")
_LAZY = Foreign("a lazily conjugated or negated tensor", "save x.resolve_conj().resolve_neg()")
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")

# The start of a name, what it is, and what to save instead.
_REFUSED = {
    "torch._utils._rebuild_sparse": ("a sparse tensor", "save x.to_dense()"),
    "torch._utils._rebuild_qtensor": ("a quantized tensor", "save x.dequantize()"),
    "torch.Q": ("a quantized tensor", "save x.dequantize()"),
    "torch._utils._rebuild_nested": ("a nested tensor", "save list(x.unbind())"),
    "torch._utils._rebuild_meta": ("a meta tensor", "it has a shape and no data"),
    "torch.float4": ("a tensor of packed 4-bit floats", "save x.view(torch.uint8)"),
    "torch.nn": ("", "save its tensors: torch.save(x.state_dict(), path)"),
    "monai.": ("", "save plain tensors: {key: x.as_tensor()}"),
    "torch_geometric.": ("", "save x.to_dict()"),
    "tensordict.": ("", "save x.to_dict()"),
    "torchvision.": ("", "save plain tensors: x.as_subclass(torch.Tensor)"),
    "pathlib": ("", "save str(x)"),
    "datetime.": ("", "save x.isoformat() or x.timestamp()"),
    "numpy.": ("", "save a plain array: numpy.asarray(x), numpy.ma: x.filled()"),
    "builtins.": ("", "save a list or a dict"),
    "collections.": ("", "save dict(x) or list(x)"),
}

_TYPES = {
    "bool": "|b1", "uint8": "|u1", "int8": "|i1", "int16": "<i2", "int32": "<i4",
    "int64": "<i8", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "float16": "<f2",
    "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    "bfloat16": "bfloat16", "complex32": "complex32", "float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fnuz", "float8_e5m2": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2fnuz", "float8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_STORAGES = {
    "Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": "bfloat16", "Long": "<i8",
    "Int": "<i4", "Short": "<i2", "Char": "|i1", "Byte": "|u1", "Bool": "|b1",
    "ComplexDouble": "<c16", "ComplexFloat": "<c8",
}  # fmt: skip

_FUNCTIONS = {
    ("torch._utils", "_rebuild_tensor"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): _size,
    ("torch", "device"): _label,
    ("torch.serialization", "_get_layout"): _label,
    ("collections", "OrderedDict"): _mapping,
    ("numpy", "dtype"): _dtype,
    **{
        (f"numpy.{core}.{module}", name): build
        for core in ("core", "_core")
        for module, name, build in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
    **{
        (module, name): build
        for module in ("builtins", "__builtin__")
        for name, build in (("bytes", _bytes), ("bytearray", _bytes), ("complex", _complex))
    },
}

GLOBALS: dict[tuple[str, str], Global] = {
    **{key: Global(".".join(key), build) for key, build in _FUNCTIONS.items()},
    **{("torch", name): Global(f"torch.{name}", None, dtype) for name, dtype in _TYPES.items()},
    **{("ml_dtypes", name): Global(f"ml_dtypes.{name}", None, name) for name in EXTENDED},
    **{
        ("torch", f"{name}Storage"): Global(f"torch.{name}Storage", None, dtype)
        for name, dtype in _STORAGES.items()
    },
    ("torch.storage", "UntypedStorage"): Global("torch.storage.UntypedStorage"),
    ("numpy", "ndarray"): Global("numpy.ndarray"),
    ("torch", "Tensor"): Global("torch.Tensor"),
    ("torch.nn.parameter", "Parameter"): Global("torch.nn.parameter.Parameter"),
}
