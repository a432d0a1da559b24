"""Pickles of arrays, strings, numbers and plain containers, and of nothing else.

A pickle is a program. Unpickling runs it, and whoever wrote it chooses what is called. Here nothing of the writer's
choosing is ever called: the opcodes are looked at before anything runs, the few names a NumPy array needs stand for
objects of this module that only collect their arguments, and the array is made from them afterwards, once shape, type
and number of bytes fit together.
"""

import io
import pickle
import pickletools

import numpy as np

from .files import DataError

LIMIT = 2**30  # bytes of the largest file that is looked at
REFUSED = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}
ARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")
BUFFERS = ("numpy.core.numeric", "numpy._core.numeric")
CODES = (("_codecs", "encode"), ("__builtin__", "bytes"))  # how Python 3 writes bytes, and no bytes, for Python 2
KINDS = "biufSU"


def load_arrays(data, file="the pickle"):
    """Unpickle bytes that hold only arrays, strings, numbers, None, lists, tuples and dicts.

    Parameters
    ----------
    data : bytes
        Of any protocol; byte strings of Python 2 are read as Latin-1.
    file : path
        For the message.

    Returns
    -------
    object
        What was pickled, with arrays as NumPy arrays that can't be written to.

    Raises
    ------
    DataError
        For anything else: another class or function, an array of objects, an array that does not fit its bytes,
        a container that holds itself, a file that is cut short.

    Examples
    --------
    >>> load_arrays(pickle.dumps(["a", {"a": 0}, np.eye(2)]))[2].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> load_arrays(pickle.dumps(print))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    easydgl_mini.data.files.DataError: the pickle: refused: it asks for builtins.print; ...
    """
    try:
        _look(data)
        return _plain(_Unpickler(io.BytesIO(data), encoding="latin1").load(), {})
    except _Refused as error:
        only = "only arrays, strings, numbers and plain containers are read"
        raise DataError(file, None, f"refused: {error}; {only}") from None
    except Exception as error:  # a damaged pickle can break the reader in many ways
        raise DataError(file, None, f"not a whole pickle ({type(error).__name__}: {error})") from error


class _Refused(Exception):
    pass


def _look(data):
    """Refuse opcodes that call, and those that would take memory out of proportion, before anything runs."""
    if len(data) > LIMIT:
        raise _Refused(f"{len(data):,} bytes are too many")
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in REFUSED:
            raise _Refused(f"it uses the opcode {opcode.name}")
        if opcode.name.endswith("PUT") and not 0 <= int(argument) <= len(data):
            raise _Refused(f"it numbers an object {argument}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("numpy", "ndarray"):
            return _Name("ndarray")
        if (module, name) == ("numpy", "dtype"):
            return _Maker(_Type)
        if module in ARRAYS and name == "_reconstruct":
            return _Maker(_Array)
        if module in BUFFERS and name == "_frombuffer":
            return _Maker(_Buffer)
        if (module, name) in CODES:
            return _Maker(_Bytes)
        raise _Refused(f"it asks for {module}.{name}")

    def persistent_load(self, _):
        raise _Refused("it asks for an object outside")


class _Name:
    """Stands for a class that is only mentioned."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __setstate__(self, _):
        raise _Refused(f"it changes {self.name}")


class _Maker:
    """Stands for a function: calling it keeps the arguments."""

    __slots__ = ("kind",)

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, *arguments):
        return self.kind(arguments)

    def __setstate__(self, _):
        raise _Refused("it changes a function")


class _Kept:
    """Arguments, and the state that came later: what an array, a type or some bytes will be made from."""

    __slots__ = ("arguments", "state")

    def __init__(self, arguments):
        self.arguments, self.state = arguments, None

    def __setstate__(self, state):
        self.state = state


class _Array(_Kept):
    __slots__ = ()

    def made(self):
        state = self.state if isinstance(self.state, tuple) else ()
        state = state[1:] if len(state) == 5 else state
        if len(state) != 4:
            raise _Refused("an array without its content")
        shape, kind, fortran, raw = state
        raw = raw.made() if isinstance(raw, _Bytes) else raw
        return _array(raw.encode("latin1") if isinstance(raw, str) else raw, kind, shape, "F" if fortran else "C")


class _Buffer(_Kept):
    __slots__ = ()

    def made(self):
        if len(self.arguments) != 4 or self.state is not None:
            raise _Refused("an array without its content")
        raw, kind, shape, order = self.arguments
        return _array(raw, kind, shape, order)


class _Bytes(_Kept):
    __slots__ = ()

    def made(self):
        if not self.arguments:
            return b""
        if len(self.arguments) != 2 or not isinstance(self.arguments[0], str) or self.arguments[1] != "latin1":
            raise _Refused("bytes that are not Latin-1")
        return self.arguments[0].encode("latin1")


class _Type(_Kept):
    __slots__ = ()

    def made(self):
        name = self.arguments[0] if self.arguments else None
        name = name.decode("latin1") if isinstance(name, bytes) else name
        if not isinstance(name, str) or name[:1] not in KINDS or not name[1:].isdigit() or len(name) > 8:
            raise _Refused(f"an array of {name!r}")
        state = self.state if isinstance(self.state, tuple) else (None, "|")
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise _Refused(f"an array of {name!r} with parts")
        return np.dtype(name).newbyteorder(order)


def _array(raw, kind, shape, order):
    if not isinstance(kind, _Type) or not isinstance(raw, bytes | bytearray) or order not in ("C", "F"):
        raise _Refused("an array of objects")
    kind = kind.made()
    if not isinstance(shape, tuple) or len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
        raise _Refused(f"an array of shape {shape!r:.60}")
    size = kind.itemsize
    for n in shape:
        size *= n
    if size != len(raw) or not kind.itemsize:
        raise _Refused(f"an array of {size:,} bytes that brings {len(raw):,}")
    return np.frombuffer(raw, kind).reshape(shape, order=order)


def _plain(value, made, depth=0):
    """The value with arrays and bytes made; anything but plain containers of plain values is refused.

    ``made`` has what was made of each container so far (None while it is being made): one that is referred to a
    thousand times is made once.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, _Array | _Buffer | _Bytes):
        return value.made()
    if not isinstance(value, list | tuple | dict):
        raise _Refused(f"it holds a {type(value).__name__.strip('_').lower()}")
    if id(value) not in made:
        if depth > 20:
            raise _Refused("containers inside containers without end")
        made[id(value)] = None
        if isinstance(value, dict):
            parts = value.items()
            new = {_plain(key, made, depth + 1): _plain(part, made, depth + 1) for key, part in parts}
        else:
            new = type(value)(_plain(part, made, depth + 1) for part in value)
        made[id(value)] = new
    if made[id(value)] is None:
        raise _Refused("containers inside containers without end")
    return made[id(value)]
