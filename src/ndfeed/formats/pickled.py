"""The pickles inside .pt files, read without running anything.

A machine of its own for the opcodes that ``torch.save`` writes with protocols 2 to 5. Its
values are plain containers, numbers, text, and the descriptions of ``rebuild``: names in the
stream are looked up in a list, never imported, and what is called builds descriptions only.
The bytes of an array stay where they are; a value says where. ``opcodes`` has the steps.

Refused: opcodes that no such pickle has (extensions, ids as text, instances as in protocol 0,
buffers kept elsewhere), keys that are neither text nor whole numbers, and more than
``_MOST_OPCODES`` steps. A step makes at most one value, so that bound holds for the memo, the
stack and the number of objects too. Keys of dicts come out as text. Lists and dicts can still
contain themselves, and tuples share their parts: whoever walks the result must stop at some
depth and count the steps.

Errors have no path: the result depends on the bytes alone and can serve many files.
"""

import struct

from ndfeed.errors import FormatError, LimitError
from ndfeed.formats.opcodes import STEPS, Machine
from ndfeed.formats.rebuild import Foreign, Value

_MOST_OPCODES = 2_000_000
_STOP, _BINPUT, _MEMOIZE, _BINGET, _BININT1 = b".q\x94hK"


def parse(data: bytes) -> tuple[Value, list[Foreign]]:
    """What ``data`` describes, and all the names in it that are not understood."""
    machine = Machine(data)
    try:
        _run(machine)
    except FormatError:
        raise
    except IndexError:
        problem = "the pickle ends early, or lacks a value that it uses"
        raise FormatError("", problem, machine.at) from None
    except KeyError:
        raise FormatError("", "the pickle recalls what it never stored", machine.at) from None
    except (ValueError, struct.error) as error:
        raise FormatError("", f"the pickle is malformed: {error}", machine.at) from None
    if len(machine.stack) != 1 or machine.below:
        raise FormatError("", "the pickle stops in the middle of a value", machine.at)
    return machine.stack[0], machine.strangers


def _run(machine: Machine) -> None:
    """Step until the pickle says stop."""
    data, memo, stack = machine.data, machine.memo, machine.stack
    at = 0
    for _ in range(_MOST_OPCODES):
        code = data[at]
        # The four that make up half of every pickle are done here: a call costs more.
        if code == _BINPUT:
            if data[at + 1] == len(memo):
                memo.append(stack[-1])
            else:
                machine.store(data[at + 1])
            at += 2
        elif code == _BININT1:
            stack.append(data[at + 1])
            at += 2
        elif code == _BINGET:
            stack.append(memo[data[at + 1]])
            at += 2
        elif code == _MEMOIZE:
            memo.append(stack[-1])
            at += 1
        elif code == _STOP:
            return
        else:
            machine.at = at
            at = STEPS[code](machine, at + 1)
            stack = machine.stack
    raise LimitError("", f"a pickle of at most {_MOST_OPCODES} steps expected", at)
